//! Who may read the page: everybody, or who knows the token of a file.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

/// The fewest bytes of a token: who tries all of fewer finds it.
const FEWEST: usize = 16;

/// A file with a token. It is read for each request, so a new token holds at once.
#[derive(Clone, Debug)]
pub(super) struct Token(PathBuf);

impl Token {
    /// # Errors
    /// The file cannot be read, or its token is short.
    pub(super) fn of(file: PathBuf) -> anyhow::Result<Self> {
        let token = Self(file);
        let length = token.read()?.len();
        ensure!(
            length >= FEWEST,
            "the token in {} has {length} bytes: {FEWEST} are the fewest",
            token.0.display()
        );
        Ok(token)
    }

    fn read(&self) -> anyhow::Result<String> {
        let text = fs::read_to_string(&self.0);
        let text = text.with_context(|| format!("cannot read {}", self.0.display()))?;
        Ok(text.trim().to_owned())
    }

    /// Whether the value of a header `Authorization` has the token: as `Bearer`, or as the password that a
    /// browser asks for (`Basic`), with any user.
    pub(super) fn admits(&self, authorization: Option<&str>) -> bool {
        let Some((scheme, given)) = authorization.and_then(|it| it.split_once(' ')) else {
            return false;
        };
        let given = match scheme {
            _ if scheme.eq_ignore_ascii_case("bearer") => Some(given.trim().to_owned()),
            _ if scheme.eq_ignore_ascii_case("basic") => password(given.trim()),
            _ => None,
        };
        // A file that is gone, or is being written, admits nobody.
        let token = self.read().ok().filter(|token| token.len() >= FEWEST);
        given.zip(token).is_some_and(|(given, token)| is_same(given.as_bytes(), token.as_bytes()))
    }
}

fn password(encoded: &str) -> Option<String> {
    let text = String::from_utf8(BASE64_STANDARD.decode(encoded).ok()?).ok()?;
    text.split_once(':').map(|(_, password)| password.to_owned())
}

/// Takes as long wherever they differ.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let differ = one.iter().zip(other).fold(0, |differ, (a, b)| differ | (a ^ b));
    one.len() == other.len() && differ == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_knows_the_token_of_the_file_is_admitted() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("token");
        assert!(Token::of(file.clone()).is_err(), "no file");
        fs::write(&file, "short\n").expect("a file");
        assert!(Token::of(file.clone()).is_err(), "guessed soon");
        fs::write(&file, "0123456789abcdef\n").expect("a file");
        let token = Token::of(file.clone()).expect("a token");
        let basic = |text: &str| format!("Basic {}", BASE64_STANDARD.encode(text));
        for right in
            ["Bearer 0123456789abcdef", "bearer  0123456789abcdef", &basic("me:0123456789abcdef")]
        {
            assert!(token.admits(Some(right)), "{right}");
        }
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer 0123456789abcdeF",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "0123456789abcdef",
            "Digest 0123456789abcdef",
            "Basic ?",
            &basic("0123456789abcdef"),
            &basic("me:"),
        ] {
            assert!(!token.admits(Some(wrong)), "{wrong}");
        }
        assert!(!token.admits(None));
        // A token that is exchanged, and one that is gone.
        fs::write(&file, "fedcba9876543210").expect("a file");
        assert!(token.admits(Some("Bearer fedcba9876543210")));
        assert!(!token.admits(Some("Bearer 0123456789abcdef")));
        for empty in ["", "   \n"] {
            fs::write(&file, empty).expect("a file");
            assert!(!token.admits(Some("Bearer ")) && !token.admits(Some("Basic bTo=")));
        }
        fs::remove_file(&file).expect("the file");
        assert!(!token.admits(Some("Bearer fedcba9876543210")));
    }
}
