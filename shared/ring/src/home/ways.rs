//! Keeps what was measured between devices in the state folder.

use serde::{Deserialize, Serialize};

use super::identity::PublicKey;
use super::state::{StateError, StateFolder};
use crate::core::DeviceId;
use crate::core::ways::{OneWay, Ways};

const FILE: &str = "edges.json";
/// Version of the file format.
const FORM: u32 = 1;

/// One direction of a path, as it is stored.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredEdge {
    from: PublicKey,
    to: PublicKey,
    latency_s: f64,
    bytes_per_s: f64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    form: u32,
    ways: Vec<StoredEdge>,
}

/// Loads what was kept. A damaged file counts as empty: everything is measured again.
pub fn load(folder: &StateFolder) -> Ways {
    let stored = folder.read::<Stored>(FILE).unwrap_or_else(|err| {
        tracing::warn!(%err, "what was measured between devices is measured again");
        None
    });
    let mut ways = Ways::default();
    for edge in stored.filter(|stored| stored.form == FORM).into_iter().flat_map(|stored| stored.ways) {
        let way = OneWay { latency_s: edge.latency_s, bytes_per_s: edge.bytes_per_s };
        ways.add(DeviceId(edge.from.0), DeviceId(edge.to.0), way);
    }
    ways
}

/// Keeps it, in place of what was kept before.
///
/// # Errors
/// [`StateError`] if the file cannot be written.
pub fn keep(folder: &StateFolder, ways: &Ways) -> Result<(), StateError> {
    let stored = |(from, to, way): (DeviceId, DeviceId, OneWay)| StoredEdge {
        from: PublicKey(from.0),
        to: PublicKey(to.0),
        latency_s: way.latency_s,
        bytes_per_s: way.bytes_per_s,
    };
    folder.write(FILE, &Stored { form: FORM, ways: ways.all().map(stored).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::frame::LinkSpeed;

    #[test]
    fn what_was_measured_is_kept_and_what_is_damaged_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let folder = StateFolder::open(Some(dir.path().to_owned())).unwrap();
        assert_eq!(load(&folder), Ways::default());
        let mut ways = Ways::default();
        let (a, b) = (DeviceId([1; 32]), DeviceId([2; 32]));
        let speed = LinkSpeed { latency_s: 0.004, there_bytes_per_s: 1e7, back_bytes_per_s: 2e7 };
        ways.put(a, b, speed);
        keep(&folder, &ways).unwrap();
        assert_eq!(load(&folder), ways);
        let path = folder.path().join(FILE);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("20000000.0", "-1.0")).unwrap();
        let rest = load(&folder);
        assert!(rest.knows(a, b) && !rest.knows(b, a), "a rate that is none");
        std::fs::write(&path, "{").unwrap();
        assert_eq!(load(&folder), Ways::default());
    }
}
