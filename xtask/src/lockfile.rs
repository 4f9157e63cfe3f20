//! Reads `Cargo.lock`: how many crates a package stands on.

use std::collections::{BTreeMap, BTreeSet};

/// The packages of a lock file by name; each with its version and what it depends on.
#[derive(Debug)]
pub(crate) struct Lock<'a> {
    packages: BTreeMap<&'a str, Vec<Locked<'a>>>,
}

#[derive(Debug, Default)]
struct Locked<'a> {
    version: &'a str,
    /// A name, or a name and a version if the lock has several versions.
    dependencies: Vec<&'a str>,
}

impl<'a> Lock<'a> {
    /// Reads the text of a lock file. Lines that say something else are passed over.
    pub(crate) fn parse(text: &'a str) -> Self {
        let mut packages: BTreeMap<&str, Vec<Locked<'_>>> = BTreeMap::new();
        for entry in text.split("[[package]]").skip(1) {
            let mut name = "";
            let mut locked = Locked::default();
            for line in entry.lines() {
                if let Some(value) = line.strip_prefix("name = ") {
                    name = value.trim_matches('"');
                } else if let Some(value) = line.strip_prefix("version = ") {
                    locked.version = value.trim_matches('"');
                } else if let Some(value) = line.strip_prefix(" \"") {
                    locked.dependencies.push(value.trim_end_matches(',').trim_end_matches('"'));
                }
            }
            packages.entry(name).or_default().push(locked);
        }
        Self { packages }
    }

    /// Whether a package of this name is there.
    pub(crate) fn has(&self, package: &str) -> bool {
        self.packages.contains_key(package)
    }

    /// How many other packages this one stands on, for every system, with those of its tests.
    pub(crate) fn crates_below(&self, package: &str) -> usize {
        let mut seen = BTreeSet::new();
        let mut open: Vec<&Locked<'_>> = self.packages.get(package).into_iter().flatten().collect();
        while let Some(locked) = open.pop() {
            for dependency in &locked.dependencies {
                if seen.insert(*dependency) {
                    open.extend(self.find(dependency));
                }
            }
        }
        seen.len()
    }

    fn find(&self, dependency: &str) -> Option<&Locked<'a>> {
        let mut words = dependency.split(' ');
        let versions = self.packages.get(words.next()?)?;
        match words.next() {
            Some(version) => versions.iter().find(|locked| locked.version == version),
            None => versions.first(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = r#"
version = 4

[[package]]
name = "top"
version = "0.1.0"
dependencies = [
 "left 2.0.0",
 "right",
]

[[package]]
name = "left"
version = "1.0.0"
source = "registry+https://github.com/rust-lang/crates.io-index"
dependencies = [
 "right",
]

[[package]]
name = "left"
version = "2.0.0"
dependencies = [
 "below",
]

[[package]]
name = "right"
version = "3.1.0"
dependencies = [
 "below",
]

[[package]]
name = "below"
version = "1.0.0"
"#;

    #[test]
    fn crates_are_counted_once() {
        let lock = Lock::parse(LOCK);
        assert_eq!(lock.crates_below("top"), 3);
        assert_eq!(lock.crates_below("right"), 1);
        assert_eq!(lock.crates_below("below"), 0);
        assert_eq!(lock.crates_below("unknown"), 0);
        assert!(lock.has("right") && !lock.has("unknown"));
    }
}
