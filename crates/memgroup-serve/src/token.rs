//! Token: a secret that grants a right.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use subtle::ConstantTimeEq as _;

/// The fewest and the most bytes of a token.
const LEN: std::ops::RangeInclusive<usize> = 16..=256;

/// A secret that a client sends in the header `Authorization: Bearer ...`. `Debug` does not show
/// it.
#[derive(Clone)]
pub struct Token(String);

/// The reason why a text is not a [`Token`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The text is too short for a secret, or too long for a header; its length in bytes.
    #[error("a token of {0} bytes: it needs {least} to {most}", least = LEN.start(), most = LEN.end())]
    Length(usize),
    /// The text has this byte, which is not a letter, a digit or one of `-._~+/=`.
    #[error("a token with the byte {:?}: it takes letters, digits and -._~+/=", char::from(*.0))]
    Byte(u8),
}

impl Token {
    /// Makes a token of 256 random bits, written as 64 hexadecimal digits.
    ///
    /// # Errors
    /// The operating system provides no random numbers.
    pub fn random() -> io::Result<Token> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)
            .map_err(|error| io::Error::other(format!("make a random token: {error}")))?;
        Ok(Token(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// Makes a token from a text, such as one from a file of secrets.
    ///
    /// ```
    /// use memgroup_serve::Token;
    ///
    /// let token = Token::new("k3Yg0zJ7c2P4_not-this-one".replace('_', "~"))?;
    /// assert_eq!(format!("{token:?}"), "Token(..)");
    /// assert_eq!(Token::new("short").unwrap_err().to_string(), "a token of 5 bytes: it needs 16 to 256");
    /// # Ok::<(), memgroup_serve::TokenError>(())
    /// ```
    ///
    /// # Errors
    /// The text has less than 16 or more than 256 bytes, or a byte that [`TokenError::Byte`]
    /// describes.
    pub fn new(text: impl Into<String>) -> Result<Token, TokenError> {
        let text = text.into();
        let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(byte);
        if !LEN.contains(&text.len()) {
            return Err(TokenError::Length(text.len()));
        }
        match text.bytes().find(|byte| !allowed(byte)) {
            Some(byte) => Err(TokenError::Byte(byte)),
            None => Ok(Token(text)),
        }
    }

    /// The secret itself.
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// Writes the secret and a newline to a new file of mode 0600. It first removes a file or link
    /// at `path`, and never writes through a link.
    ///
    /// # Errors
    /// The file cannot be removed, created or written.
    pub fn write_to(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        writeln!(file, "{}", self.0)
    }

    /// Returns whether a client's text is this token. The time does not depend on where the two
    /// differ.
    pub(crate) fn is(&self, text: &[u8]) -> bool {
        bool::from(self.0.as_bytes().ct_eq(text))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn two_random_tokens_differ_and_are_valid() {
        let (one, other) = (Token::random().unwrap(), Token::random().unwrap());
        assert_eq!(one.secret().len(), 64);
        assert!(!one.is(other.secret().as_bytes()) && one.is(one.secret().as_bytes()));
        Token::new(one.secret()).unwrap();
    }

    #[test]
    fn a_prefix_and_a_longer_text_are_no_match() {
        let token = Token::new("0123456789abcdef").unwrap();
        for text in ["", "0123456789abcde", "0123456789abcdef0", "0123456789abcdeF"] {
            assert!(!token.is(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn refuses_bytes_that_no_header_takes() {
        assert_eq!(Token::new("0123456789abcde\n").unwrap_err(), TokenError::Byte(b'\n'));
        assert_eq!(Token::new("x".repeat(257)).unwrap_err(), TokenError::Length(257));
    }

    #[test]
    fn writes_a_new_file_that_only_the_owner_reads() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("token"), folder.path().join("other"));
        std::fs::write(&other, "untouched").unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        let token = Token::random().unwrap();
        token.write_to(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}\n", token.secret()));
        assert_eq!(std::fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "untouched");
    }
}
