//! A running checksum over the events of one reply, so that a damaged event is noticed and never shown as an
//! answer.
//!
//! The data of each event ends with one more field, `"crc":"0a1b2c3d"`. It is the CRC-32 of the body of the
//! request, then of the name and the data (without this field) of every event so far, this one included. A
//! flipped bit in the request or in any event, a lost event or a repeated one changes every later checksum.
//!
//! The field is optional: a device that does not know it ignores it, and a stream without it is accepted.
//! Once an event of a stream carried it, each later event must. It finds accidents, not attacks; TLS protects
//! against those.

use crc32fast::Hasher;
use uuid::Uuid;

/// Text between an event's own data and the digits of the checksum.
const FIELD: &str = ",\"crc\":\"";
/// Text after the digits.
const END: &str = "\"}";
const DIGITS: usize = 8;

/// The running checksum of one reply; sender and receiver each keep one.
#[derive(Debug, Clone)]
pub struct StreamChecksum {
    sum: Hasher,
    /// An earlier event carried a checksum.
    carried: bool,
}

/// Why an event was refused: it is not what was sent, or it follows a lost event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChecksumError {
    /// The checksum does not match the received event.
    #[error("the checksum of an event is {got:08x}, what came has {want:08x}")]
    Differs {
        /// The checksum that the event carries.
        got: u32,
        /// The checksum of what was received.
        want: u32,
    },
    /// Earlier events of the stream carried one.
    #[error("an event has no checksum, though the stream carries them")]
    Missing,
}

impl StreamChecksum {
    /// Starts the checksum of the reply to a request; `asked` is the request's body as JSON, not compressed.
    pub fn new(asked: &[u8]) -> Self {
        let mut sum = Hasher::new();
        sum.update(asked);
        Self { sum, carried: false }
    }

    /// Starts the checksum of a stream that is resumed after token index `seen`; `None` resumes it from the
    /// start.
    pub fn of_resumed(request_id: Uuid, seen: Option<u32>) -> Self {
        let seen = seen.map_or_else(String::new, |index| index.to_string());
        Self::new(format!("{request_id} {seen}").as_bytes())
    }

    /// Adds an event and writes the checksum into its data, a JSON object with at least one field.
    pub fn seal(&mut self, name: &str, data: &mut String) {
        let sum = self.add(name, data);
        debug_assert!(data.ends_with('}') && data.len() > 2, "an event's data is an object with fields");
        data.pop();
        data.push_str(FIELD);
        data.push_str(&format!("{sum:08x}"));
        data.push_str(END);
    }

    /// Adds a received event and compares its checksum, if it carries one.
    ///
    /// # Errors
    /// [`ChecksumError`] if the checksum differs or is missing: this event and all later ones must not be
    /// used.
    pub fn check(&mut self, name: &str, data: &str) -> Result<(), ChecksumError> {
        let Some((own, got)) = split(data) else {
            self.add(name, data);
            return if self.carried { Err(ChecksumError::Missing) } else { Ok(()) };
        };
        self.carried = true;
        self.sum.update(name.as_bytes());
        self.sum.update(b"\n");
        self.sum.update(own.as_bytes());
        self.sum.update(b"}\n");
        let want = self.sum.clone().finalize();
        if got == want { Ok(()) } else { Err(ChecksumError::Differs { got, want }) }
    }

    fn add(&mut self, name: &str, data: &str) -> u32 {
        for part in [name, "\n", data, "\n"] {
            self.sum.update(part.as_bytes());
        }
        self.sum.clone().finalize()
    }
}

/// Returns the data without its checksum and closing brace, and the checksum; `None` if there is no checksum.
fn split(data: &str) -> Option<(&str, u32)> {
    let rest = data.strip_suffix(END)?;
    let (rest, digits) = rest.split_at_checked(rest.len().checked_sub(DIGITS)?)?;
    let own = rest.strip_suffix(FIELD)?;
    let hex = digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    Some((own, u32::from_str_radix(digits, 16).ok().filter(|_| hex)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: &[u8] = br#"{"question":"Which ship?"}"#;
    const EVENTS: [(&str, &str); 3] = [
        ("first", r#"{"index":0,"id":5,"text":"The \"crc\""}"#),
        ("token", r#"{"index":1,"id":6,"text":" é"}"#),
        ("end", r#"{"reason":"cap"}"#),
    ];

    fn sealed(asked: &[u8]) -> Vec<(String, String)> {
        let mut sum = StreamChecksum::new(asked);
        let seal = |(name, data): (&str, &str)| {
            let mut data = data.to_owned();
            sum.seal(name, &mut data);
            (name.to_owned(), data)
        };
        EVENTS.into_iter().map(seal).collect()
    }

    /// Counts the events before the first one that fails the check.
    fn believed(asked: &[u8], events: &[(String, String)]) -> usize {
        let mut sum = StreamChecksum::new(asked);
        events.iter().take_while(|(name, data)| sum.check(name, data).is_ok()).count()
    }

    #[test]
    fn sealed_data_is_json_and_believed() {
        let events = sealed(ASKED);
        assert_eq!(events[2].1, format!("{{\"reason\":\"cap\",\"crc\":\"{}\"}}", &events[2].1[23..31]));
        for (name, data) in &events {
            let value: serde_json::Value = serde_json::from_str(data).unwrap();
            assert_eq!(value["crc"].as_str().unwrap().len(), DIGITS, "{name}");
        }
        assert_eq!(believed(ASKED, &events), 3);
    }

    #[test]
    fn another_request_is_not_answered() {
        assert_eq!(believed(br#"{"question":"Which shop?"}"#, &sealed(ASKED)), 0);
    }

    #[test]
    fn lost_repeated_and_bare_events_are_noticed() {
        let events = sealed(ASKED);
        let pick = |indexes: &[usize]| indexes.iter().map(|&i| events[i].clone()).collect::<Vec<_>>();
        assert_eq!(believed(ASKED, &pick(&[0, 2])), 1);
        assert_eq!(believed(ASKED, &pick(&[0, 0, 1])), 1);
        assert_eq!(believed(ASKED, &pick(&[1, 0])), 0);
        let mut bare = events.clone();
        bare[1].1 = EVENTS[1].1.to_owned();
        assert_eq!(believed(ASKED, &bare), 1);
        let none: Vec<_> = EVENTS.map(|(name, data)| (name.to_owned(), data.to_owned())).to_vec();
        assert_eq!(believed(ASKED, &none), 3, "a cloud that knows no checksums is taken as it is");
    }
}
