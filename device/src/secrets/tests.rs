//! Keys stay the same, sealed or not; what is damaged or does not open is told and stays.

use super::*;

fn source(text: &str) -> Option<SecretSource> {
    Some(SecretSource::Command(format!("echo {text}")))
}

#[test]
fn a_key_stays_and_is_sealed_opened_and_unsealed() {
    let place = tempfile::tempdir().unwrap();
    let plain = Keys::new(place.path(), None);
    assert_eq!(plain.look("a.key").unwrap(), KeyFile::Missing);
    let key = plain.get("a.key").unwrap();
    assert_eq!(plain.get("a.key").unwrap(), key);
    assert_eq!((plain.look("a.key").unwrap(), plain.unseal("a.key").unwrap()), (KeyFile::Plain, false));
    assert_ne!(plain.get("b.key").unwrap(), key);

    let sealed = Keys::new(place.path(), source("correct horse"));
    assert_eq!(sealed.get("a.key").unwrap(), key, "sealing changes no key");
    assert_eq!(sealed.look("a.key").unwrap(), KeyFile::Sealed);
    let bytes = fs::read(place.path().join("a.key")).unwrap();
    assert!(!bytes.windows(8).any(|window| window == &key[..8]));
    assert_eq!(sealed.get("a.key").unwrap(), key);
    let made = sealed.get("new.key").unwrap();
    assert_eq!((sealed.look("new.key").unwrap(), sealed.get("new.key").unwrap()), (KeyFile::Sealed, made));

    assert!(matches!(plain.get("a.key"), Err(KeyError::Sealed { .. })));
    assert!(matches!(plain.unseal("a.key"), Err(KeyError::Sealed { .. })));
    let other = Keys::new(place.path(), source("correct house"));
    assert!(matches!(other.get("a.key"), Err(KeyError::Wrong { .. })));
    assert!(matches!(other.unseal("a.key"), Err(KeyError::Wrong { .. })));
    assert_eq!(sealed.get("a.key").unwrap(), key, "a wrong passphrase changes nothing");

    assert!(sealed.unseal("a.key").unwrap());
    assert_eq!(plain.get("a.key").unwrap(), key);
    let left: Vec<_> = fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "{left:?}");
}

#[test]
fn a_damaged_file_is_told_and_stays() {
    let place = tempfile::tempdir().unwrap();
    let keys = Keys::new(place.path(), source("horse"));
    keys.get("a.key").unwrap();
    let whole = fs::read(place.path().join("a.key")).unwrap();
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(place.path().join("a.key"), &bytes).unwrap();
        let err = keys.get("a.key").unwrap_err();
        match at < MAGIC.len() {
            true => assert!(matches!(err, KeyError::NoKey { .. }), "byte {at}: {err}"),
            false => assert!(matches!(err, KeyError::Wrong { .. }), "byte {at}: {err}"),
        }
        assert_eq!(fs::read(place.path().join("a.key")).unwrap(), bytes);
    }
    for bytes in [&whole[..83], &[], &[1; 33]] {
        fs::write(place.path().join("a.key"), bytes).unwrap();
        assert!(matches!(keys.get("a.key"), Err(KeyError::NoKey { .. })), "{} bytes", bytes.len());
    }
}

#[test]
fn a_passphrase_is_asked_for_once_and_only_if_it_is_needed() {
    let place = tempfile::tempdir().unwrap();
    let asked = place.path().join("asked");
    let command = format!("echo asked >> '{}'; echo horse", asked.display());
    let keys = Keys::new(place.path(), Some(SecretSource::Command(command)));
    assert_eq!(keys.look("a.key").unwrap(), KeyFile::Missing);
    assert!(!asked.exists());
    keys.get("a.key").unwrap();
    keys.clone().get("b.key").unwrap();
    assert_eq!(fs::read_to_string(asked).unwrap().trim_end(), "asked");
}

#[test]
fn a_secret_is_the_first_line_of_a_command_or_a_file() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("secret");
    fs::write(&path, "a b\r\nsecond").unwrap();
    assert_eq!(SecretSource::File(path.clone()).read().unwrap(), "a b");
    let command = |text: &str| SecretSource::Command(text.to_owned()).read();
    assert_eq!(command("echo one; echo two").unwrap(), "one");
    let err = command("exit 3").unwrap_err();
    assert!(matches!(&err, SourceError::Failed { .. }) && err.to_string().contains("exit 3"), "{err}");
    assert!(matches!(command("echo; echo two"), Err(SourceError::NoSecret { .. })));
    fs::write(&path, "x".repeat(5000)).unwrap();
    assert!(matches!(SecretSource::File(path.clone()).read(), Err(SourceError::NoSecret { .. })));
    fs::write(&path, [0xff, 0xfe]).unwrap();
    assert!(matches!(SecretSource::File(path).read(), Err(SourceError::NoSecret { .. })));
    let missing = SecretSource::File(place.path().join("none")).read().unwrap_err();
    assert!(matches!(missing, SourceError::File { .. }));
}

#[cfg(unix)]
#[test]
fn files_are_the_users_alone_also_after_sealing() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("a.key");
    for passphrase in [None, source("horse")] {
        Keys::new(place.path(), passphrase).get("a.key").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
