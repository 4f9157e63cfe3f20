//! Finds user names in the paths of home folders.

use super::{Certainty, Found, before, names, pattern, push_as};
use crate::privacy::EntityKind;

pattern!(
    HOME,
    concat!(
        r"(?:(?i:\\{1,8}(?:Users|Documents and Settings)\\{1,8}|[a-z]:/users/|/mnt/[a-z]/users/)|(?:/|%2F)(?:Users|home|export/home|var/home)(?:/|%2F))",
        r#"([^\\/\s:"'<>|*?`,;()\[\]{}&=%]+(?: [^\\/\s:"'<>|*?`,;()\[\]{}%]+){0,2}[\\/]|[^\\/\s:"'<>|*?`,;()\[\]{}&=%]+)"#
    )
);
pattern!(TILDE, r#"(?:^|[\s"'=:(`])~([A-Za-z][A-Za-z0-9._-]{1,31})/"#);

/// User names that do not identify a person.
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
    "benutzer",
    "benutzername",
    "usuario",
    "utilisateur",
    "用户名",
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
        // `/home/` and `/Users/` after a host name are pages of a site.
        let rooted =
            ["/home", "/Users", "%2Fhome", "%2FUsers"].iter().any(|root| whole.as_str().starts_with(root));
        if rooted
            && before(text, whole.start())
                .is_some_and(|c| c.is_alphanumeric() || matches!(c, '.' | '_' | '-'))
            && !is_mount(text, whole.start())
        {
            continue;
        }
        let name_text = name.as_str().trim_end_matches(['\\', '/', '.']);
        // A space belongs to a name only if the path goes on after the folder: on Windows always, on macOS
        // before a capital letter.
        let windows = whole.as_str().contains('\\') || name_text.len() == name.as_str().len();
        let mac = whole.as_str().contains("Users")
            && name_text.split(' ').skip(1).all(|word| word.starts_with(char::is_uppercase));
        let spaced = windows || mac;
        let name_text = if spaced { name_text } else { name_text.split(' ').next().unwrap_or_default() };
        if !is_nobody(name_text) && name_text.chars().any(char::is_alphabetic) {
            // A word is not looked for outside paths.
            let certainty = if names::is_word(name_text) { Certainty::Likely } else { Certainty::Shown };
            push_as(found, certainty, EntityKind::User, name.start()..name.start() + name_text.len());
        }
    }
}

/// Folders under which other disks and machines are mounted.
const MOUNTS: &[&str] = &[
    "data", "mnt", "media", "srv", "nfs", "export", "net", "network", "volume", "volumes", "vol", "opt",
    "nas", "storage", "tank", "pool", "raid", "mount", "host", "rootfs", "private", "system", "scratch",
    "disk",
];
/// Longest path before a home folder, in bytes.
const MOUNT_BYTES_MAX: usize = 64;

/// Checks whether the path that ends at `at` begins at the root, in a folder of mounts.
fn is_mount(text: &str, at: usize) -> bool {
    let head = super::head(text, at, MOUNT_BYTES_MAX);
    let path =
        head.rsplit(|c: char| c.is_whitespace() || "\"'`=:(<[,;|".contains(c)).next().unwrap_or_default();
    let first = path.strip_prefix('/').and_then(|path| path.split('/').next()).unwrap_or_default();
    MOUNTS.contains(&first.trim_end_matches(|c: char| c.is_ascii_digit()).to_lowercase().as_str())
}

/// Checks whether a user name belongs to a program or to everybody.
pub(super) fn is_nobody(name: &str) -> bool {
    NOBODY.contains(&name.to_lowercase().as_str())
}
