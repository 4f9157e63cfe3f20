//! Prompts whose tokens are their letters.

/// Random prompts of letters, each a token of its own in the vocabulary of made models.
#[derive(Debug)]
pub struct Letters(u64);

impl Letters {
    /// The same seed gives the same prompts.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// So many letters.
    pub fn prompt(&mut self, letters: usize) -> String {
        // No `h` and no blank: `he` is one token.
        const ALPHABET: &[u8] = b"abcdfgijklmnopqrstuvwxyz";
        let mut letter = || {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            char::from(ALPHABET[(self.0 >> 33) as usize % ALPHABET.len()])
        };
        (0..letters).map(|_| letter()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_differ_and_have_their_length() {
        let mut letters = Letters::new(1);
        let (first, second) = (letters.prompt(512), letters.prompt(512));
        assert_eq!(first.len(), 512);
        assert_ne!(first[..16], second[..16]);
        assert!(!first.contains('h'));
    }
}
