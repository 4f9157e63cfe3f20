//! A running checksum over the events of one reply, so that a damaged line is noticed and never shown as an answer.
//!
//! The data of each event ends with one more field, `"crc":"0a1b2c3d"`: the CRC-32 of what the reply answers (the body of
//! the request), then of the name and the data (without this field) of every event so far, this one included. So a flipped bit in a
//! request, in a mask, in a token's text or id, a lost event or a repeated one changes every checksum from there on.
//! The field is optional: a device that does not know it ignores it, and a stream without it is taken as it comes. Once
//! a stream carried it, each further event must. It finds accidents, not attacks: for those there is TLS.

use crc32fast::Hasher;
use uuid::Uuid;

/// What stands between an event's own data and the checksum's digits.
const FIELD: &str = ",\"crc\":\"";
/// What follows the digits.
const END: &str = "\"}";
const DIGITS: usize = 8;

/// The checksum of one reply, on either side.
#[derive(Debug, Clone)]
pub struct StreamChecksum {
    sum: Hasher,
    /// An event carried a checksum.
    carried: bool,
}

/// An event that is not what was sent, or that follows one that was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChecksumError {
    /// The checksum does not fit what came.
    #[error("the checksum of an event is {got:08x}, what came has {want:08x}")]
    Differs {
        /// As the event says.
        got: u32,
        /// Of what came.
        want: u32,
    },
    /// Earlier events of the stream carried one.
    #[error("an event has no checksum, though the stream carries them")]
    Missing,
}

impl StreamChecksum {
    /// Of the reply to a request; `asked` is its body as JSON (inflated).
    pub fn new(asked: &[u8]) -> Self {
        let mut sum = Hasher::new();
        sum.update(asked);
        Self { sum, carried: false }
    }

    /// Of a stream that is taken up again behind the token `seen`.
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

    /// Adds an event that came and compares its checksum, if it carries one.
    ///
    /// # Errors
    /// [`ChecksumError`]: this event and what follows it must not be used.
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

/// Data without its checksum and closing brace, and the checksum.
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

    /// How many events are believed.
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
