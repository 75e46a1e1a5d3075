//! The crates that are linked, in the format [CycloneDX](https://cyclonedx.org/docs/1.5/json/).

use serde_json::{Value, json};

use crate::crates::{Crate, Linked};

pub(crate) fn document(linked: &Linked) -> Value {
    let dlm = format!("pkg:cargo/dlm@{}", linked.version);
    let mut dependencies = vec![json!({"ref": dlm, "dependsOn": references(linked.needs.iter())})];
    for known in linked.crates.values() {
        dependencies.push(json!({"ref": reference(known), "dependsOn": references(known.needs.iter())}));
    }
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": dlm,
                "name": "dlm",
                "version": linked.version,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        "components": linked.crates.values().map(component).collect::<Vec<_>>(),
        "dependencies": dependencies,
    })
}

fn component(known: &Crate) -> Value {
    json!({
        "type": "library",
        "bom-ref": reference(known),
        "name": known.name,
        "version": known.version,
        "purl": reference(known),
        "licenses": [{"expression": known.licence}],
        "hashes": [{"alg": "SHA-256", "content": known.checksum}],
    })
}

fn reference(known: &Crate) -> String {
    format!("pkg:cargo/{}@{}", known.name, known.version)
}

/// Takes names and versions.
fn references<'a>(needs: impl Iterator<Item = &'a String>) -> Vec<String> {
    needs.map(|it| format!("pkg:cargo/{}", it.replace(' ', "@"))).collect()
}
