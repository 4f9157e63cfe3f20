//! An error in one line of words, for reports and frames: who hears it has no error to ask for its cause.

/// The error, then each of its causes behind a colon.
pub(crate) fn chain(err: &dyn std::error::Error) -> String {
    let mut text = err.to_string();
    let mut source = err.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::chain;

    #[derive(Debug, thiserror::Error)]
    #[error("above")]
    struct Above(#[source] std::io::Error);

    #[test]
    fn causes_follow_in_order() {
        let err = Above(std::io::Error::other("below"));
        assert_eq!(chain(&err), "above: below");
    }
}
