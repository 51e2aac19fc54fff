//! Text of an error with its causes.

use std::error::Error;

/// Formats an error and all its causes in one line; a cause that the text before it ends with is
/// there already.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let message = cause.to_string();
        if !text.ends_with(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Outer {
        text: &'static str,
        source: io::Error,
    }

    #[test]
    fn a_cause_is_told_once() {
        for (text, told) in [("cannot read", "cannot read: why"), ("cannot read: why", "cannot read: why")] {
            assert_eq!(error_chain(&Outer { text, source: io::Error::other("why") }), told);
        }
    }
}
