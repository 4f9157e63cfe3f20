//! User names in the paths of home folders.

use super::{Found, before, pattern, push};
use crate::privacy::EntityKind;

pattern!(
    HOME,
    concat!(
        r"(?:(?i:\\{1,2}(?:Users|Documents and Settings)\\{1,2}|[a-z]:/users/|/mnt/[a-z]/users/)|(?:/|%2F)(?:Users|home|export/home|var/home)(?:/|%2F))",
        r#"([^\\/\s:"'<>|*?`,;()\[\]{}&=%]+(?: [^\\/\s:"'<>|*?`,;()\[\]{}%]+){0,2}[\\/]|[^\\/\s:"'<>|*?`,;()\[\]{}&=%]+)"#
    )
);
pattern!(TILDE, r#"(?:^|[\s"'=:(`])~([A-Za-z][A-Za-z0-9._-]{1,31})/"#);

/// Names that are nobody's.
const NOBODY: &[&str] = &[
    "public",
    "anonymous",
    "ssh",
    "postgres",
    "mysql",
    "sa",
    "oauth2",
    "x-access-token",
    "x-token-auth",
    "shared",
    "default",
    "all",
    "root",
    "admin",
    "administrator",
    "user",
    "users",
    "guest",
    "ubuntu",
    "debian",
    "pi",
    "ec2-user",
    "vagrant",
    "docker",
    "node",
    "app",
    "git",
    "www-data",
    "runner",
    "jenkins",
    "linuxbrew",
    "www",
    "test",
    "username",
    "your-name",
    "yourname",
    "you",
    "name",
    "me",
    "desktop.ini",
    "...",
    "..",
    ".",
    "$user",
    "%username%",
];

pub(super) fn find(text: &str, found: &mut Vec<Found>) {
    for caps in HOME.captures_iter(text).chain(TILDE.captures_iter(text)) {
        let (Some(whole), Some(name)) = (caps.get(0), caps.get(1)) else { continue };
        // `/home/` and `/Users/` behind a host are pages of a site.
        let rooted =
            ["/home", "/Users", "%2Fhome", "%2FUsers"].iter().any(|root| whole.as_str().starts_with(root));
        if rooted && before(text, whole.start()).is_some_and(|c| c.is_alphanumeric() || c == '.') {
            continue;
        }
        let name_text = name.as_str().trim_end_matches(['\\', '/', '.']);
        // A space belongs to a name only in a folder of Windows that goes on behind it.
        let windows = whole.as_str().contains('\\') || name_text.len() == name.as_str().len();
        let name_text = if windows { name_text } else { name_text.split(' ').next().unwrap_or_default() };
        if !is_nobody(name_text) && name_text.chars().any(char::is_alphabetic) {
            push(found, EntityKind::User, name.start()..name.start() + name_text.len());
        }
    }
}

/// Whether a user name is that of a program or of everybody.
pub(super) fn is_nobody(name: &str) -> bool {
    NOBODY.contains(&name.to_lowercase().as_str())
}
