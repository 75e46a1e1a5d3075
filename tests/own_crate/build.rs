fn main() {
    // The name of the shared library, and that it stays loaded.
    println!("cargo::rustc-cdylib-link-arg={}", std::env::var("DEP_DLM_CDYLIB_LINK_ARG").unwrap());
}
