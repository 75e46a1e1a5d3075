//! The command line.

/// What can be measured alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    IdLock,
    Embedded,
    /// HBase, directly and through a gateway.
    Hbase,
    Aerospike,
}

impl Group {
    const ALL: [Group; 4] = [Group::IdLock, Group::Embedded, Group::Hbase, Group::Aerospike];

    fn name(self) -> &'static str {
        match self {
            Group::IdLock => "id_lock",
            Group::Embedded => "embedded",
            Group::Hbase => "hbase",
            Group::Aerospike => "aerospike",
        }
    }

    fn named(name: &str) -> Option<Group> {
        Group::ALL.into_iter().find(|group| group.name() == name)
    }

    /// Returns the features of the library that it uses, as far as this build has them.
    pub(crate) fn features(self) -> Vec<&'static str> {
        let used: &[_] = match self {
            Group::IdLock => &[],
            Group::Embedded => &[("embedded", cfg!(feature = "embedded"))],
            Group::Hbase => &[("hbase", cfg!(feature = "hbase")), ("gateway", cfg!(feature = "gateway"))],
            Group::Aerospike => &[("aerospike", cfg!(feature = "aerospike"))],
        };
        used.iter().filter_map(|(feature, is_built)| is_built.then_some(*feature)).collect()
    }

    /// Returns whether this build has it.
    pub(crate) fn is_built(self) -> bool {
        self == Group::IdLock || !self.features().is_empty()
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Arguments {
    /// What to measure. If nothing was named: all.
    pub(crate) groups: Vec<Group>,
    /// With `--against`: the commit to compare with.
    pub(crate) against: Option<String>,
    /// Only shows that the benchmark runs.
    pub(crate) is_quick: bool,
}

impl Arguments {
    /// Parses the command line, or says what is wrong with it. `default_commit` is the commit of an `--against` that
    /// names none.
    pub(crate) fn parse(
        words: impl IntoIterator<Item = String>,
        default_commit: &str,
    ) -> Result<Arguments, String> {
        let (mut groups, mut against) = (Vec::new(), None);
        let (mut is_bench, mut is_test) = (false, false);
        let mut words = words.into_iter().peekable();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--bench" => is_bench = true,
                "--test" => is_test = true,
                "--against" => {
                    let is_commit = |word: &String| !word.starts_with('-') && Group::named(word).is_none();
                    against = Some(words.next_if(is_commit).unwrap_or_else(|| default_commit.to_owned()));
                }
                name => groups.push(Group::named(name).ok_or_else(|| format!("unknown: {name}\n{USAGE}"))?),
            }
        }
        // Cargo passes --bench when it measures, and not when `cargo test` only tries whether benchmarks run.
        let is_quick = is_test || !is_bench;
        if groups.is_empty() {
            // The servers take longer to start than a quick run takes.
            groups = if is_quick { vec![Group::IdLock, Group::Embedded] } else { Group::ALL.into() };
        }
        Ok(Arguments { groups, against, is_quick })
    }
}

const USAGE: &str = "cargo bench --bench summary --all-features -- [id_lock] [embedded] [hbase] [aerospike] \
                     [--against [COMMIT]] [--test]";
