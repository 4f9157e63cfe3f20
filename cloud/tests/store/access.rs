//! Tests of device classes, tenants, keys, users and sessions.

use baton_cloud::access::key::hash_secret;
use baton_cloud::access::{AccessError, ClassCost, DeviceClassSettings, Role, Scope, Scopes, TenantSettings};
use baton_cloud::scene::{SceneError, SceneSettings};
use baton_cloud::store::{Expected, LoginAttempt, LoginError, NewKey, StoreError, UserChange, testing};
use baton_protocol::SettingsError;

use crate::logins::log_in;
use crate::world::{ann, on_each};

const PASSWORD: &str = "correct horse battery";

#[test]
fn device_classes_are_added_changed_and_removed() {
    on_each(|db| async move {
        let store = db.open().await;
        let cost = ClassCost { prefill_ms_per_token: 2.5, prefill_ms_per_token2: 1e-4, decode_ms: 40.0 };
        let settings = DeviceClassSettings { label: "Phone".into(), cost: Some(cost) };
        let class = store.set_device_class("phone", &settings, Expected::Absent, &ann()).await.unwrap();
        assert_eq!((class.revision, store.device_class("phone").await.unwrap()), (1, class.clone()));
        assert_eq!(store.coefficients().await.unwrap().class("phone").decode_ms, 40.0);
        let none = DeviceClassSettings { cost: None, ..settings.clone() };
        let changed = store.set_device_class("phone", &none, Expected::Revision(1), &ann()).await.unwrap();
        assert_eq!((changed.revision, changed.settings.cost), (2, None));
        let err = store.set_device_class("phone", &none, Expected::Revision(1), &ann()).await.unwrap_err();
        assert_eq!(err.to_string(), "device class `phone` is at version 2, expected 1");
        let bad = DeviceClassSettings { cost: Some(ClassCost { decode_ms: -1.0, ..cost }), ..none };
        let err = store.set_device_class("phone", &bad, Expected::Any, &ann()).await.unwrap_err();
        assert!(matches!(err, StoreError::Access(AccessError::Number { .. })), "{err}");
        assert!(store.remove_device_class("phone", Expected::Revision(1), &ann()).await.is_err());
        store.remove_device_class("phone", Expected::Revision(2), &ann()).await.unwrap();
        assert_eq!(store.device_classes().await.unwrap(), []);
        let err = store.remove_device_class("phone", Expected::Any, &ann()).await.unwrap_err();
        assert_eq!(err.to_string(), "device class `phone` does not exist");
    });
}

#[test]
fn nul_is_refused_in_settings_and_names_nothing() {
    on_each(|db| async move {
        let store = db.open().await;
        let settings = TenantSettings { label: "a\0b".into(), ..TenantSettings::default() };
        let err = store.set_tenant("acme", &settings, Expected::Any, &ann()).await.unwrap_err();
        assert!(matches!(err, StoreError::Access(AccessError::Nul { what: "label" })), "{err}");
        let settings = SceneSettings::with_system("a\0b");
        let err = store.set_scene("mine", &settings, "", Expected::Any, &ann()).await.unwrap_err();
        assert!(matches!(err, StoreError::Scene(SceneError::Settings(SettingsError::Nul { .. }))), "{err}");
        let id = "default\0";
        let unknown = [
            store.tenant(id).await.map(drop),
            store.device_class(id).await.map(drop),
            store.key(id).await.map(drop),
            store.user(id).await.map(drop),
            store.scene_history(id).await.map(drop),
            store.scene_version(id, 1).await.map(drop),
            store.remove_device_class(id, Expected::Any, &ann()).await,
            store.revoke_key(id, Expected::Any, &ann()).await.map(drop),
            store.change_user(id, &UserChange::default(), Expected::Any, &ann()).await.map(drop),
        ];
        for (at, done) in unknown.into_iter().enumerate() {
            let err = done.unwrap_err();
            assert!(matches!(err, StoreError::Unknown { .. }), "{at}: {err:?}");
        }
    });
}

#[test]
fn tenants_are_added_and_changed() {
    on_each(|db| async move {
        let store = db.open().await;
        assert_eq!(store.tenant("default").await.unwrap().settings.weight, 10, "there from the start");
        let settings = TenantSettings {
            label: "Acme".into(),
            weight: 30,
            requests_per_minute: Some(600),
            concurrency_max: Some(20),
            tokens_per_day: Some(1 << 40),
            disabled: false,
        };
        let tenant = store.set_tenant("acme", &settings, Expected::Absent, &ann()).await.unwrap();
        assert_eq!(store.tenant("acme").await.unwrap(), tenant);
        let less = TenantSettings { tokens_per_day: None, disabled: true, ..settings };
        let changed = store.set_tenant("acme", &less, Expected::Revision(1), &ann()).await.unwrap();
        assert_eq!((changed.revision, changed.created_ms), (2, tenant.created_ms));
        assert_eq!(store.tenant("acme").await.unwrap().settings, less);
        let err = store.set_tenant("acme", &less, Expected::Absent, &ann()).await.unwrap_err();
        assert_eq!(err.to_string(), "tenant `acme` is at version 2, expected 0");
        let err = store.set_tenant("a/b", &less, Expected::Any, &ann()).await.unwrap_err();
        assert!(matches!(err, StoreError::Access(AccessError::Name { .. })), "{err}");
        let ids: Vec<String> = store.tenants().await.unwrap().into_iter().map(|tenant| tenant.id).collect();
        assert_eq!(ids, ["acme", "default"]);
    });
}

fn new_key(scopes: Scopes) -> NewKey {
    NewKey { tenant: "default".into(), label: "ann's phone".into(), scopes, expires_ms: Some(i64::MAX / 2) }
}

#[test]
fn of_a_key_only_the_hash_is_kept() {
    on_each(|db| async move {
        let store = db.open().await;
        let (key, secret) = store.create_key(&new_key(Scopes::device()), &ann()).await.unwrap();
        assert_eq!(store.keys().await.unwrap(), std::slice::from_ref(&key));
        assert_eq!(key.hash, hash_secret(secret.reveal()));
        assert_eq!((key.id.as_str(), key.created_by.as_str()), (secret.id(), "user:ann"));
        assert!(key.scopes.allow(Scope::Assist) && !key.scopes.allow(Scope::Chat));
        for row in store.audit(&Default::default()).await.unwrap() {
            assert!(!row.detail.contains(&secret.reveal()[17..]), "{}", row.detail);
        }
        let nobody = NewKey { tenant: "nobody".into(), ..new_key(Scopes::ALL) };
        let err = store.create_key(&nobody, &ann()).await.unwrap_err();
        assert_eq!(err.to_string(), "tenant `nobody` does not exist");
        // A row with an unknown scope is refused, instead of granting more or less.
        testing::execute(&db.database, "UPDATE api_keys SET scopes = 'assist root'").await.unwrap();
        let err = store.keys().await.unwrap_err();
        assert_eq!(err.to_string(), "read keys: column `scopes` holds assist root");
    });
}

#[test]
fn keys_are_revoked_and_replaced() {
    on_each(|db| async move {
        let store = db.open().await;
        let (old, _) = store.create_key(&new_key(Scopes::ALL), &ann()).await.unwrap();
        let (new, secret) = store.rotate_key(&old.id, 60_000, Expected::Revision(1), &ann()).await.unwrap();
        assert_eq!((new.rotated_from.as_deref(), new.scopes), (Some(old.id.as_str()), Scopes::ALL));
        assert_eq!(new.hash, hash_secret(secret.reveal()));
        let left = store.key(&old.id).await.unwrap().expires_ms.unwrap() - new.created_ms;
        assert_eq!(left, 60_000, "the old one is good a minute more");
        assert_eq!(new.expires_ms, old.expires_ms);
        let err = store.revoke_key(&old.id, Expected::Revision(1), &ann()).await.unwrap_err();
        assert!(matches!(err, StoreError::Conflict { current: 2, .. }), "{err}");
        let revoked = store.revoke_key(&old.id, Expected::Revision(2), &ann()).await.unwrap();
        assert!(!revoked.is_good(revoked.revoked_ms.unwrap()));
        let err = store.revoke_key(&old.id, Expected::Any, &ann()).await.unwrap_err();
        assert_eq!(err.to_string(), format!("key `{}` is revoked already", old.id));
        assert!(
            store.rotate_key(&old.id, 0, Expected::Any, &ann()).await.is_err(),
            "no new life for a revoked key"
        );
        let generation = store.generation().await.unwrap();
        store.note_key_uses(&[(new.id.clone(), 500), (new.id.clone(), 400)]).await.unwrap();
        assert_eq!(store.key(&new.id).await.unwrap().last_used_ms, Some(500));
        assert_eq!(store.generation().await.unwrap(), generation, "a use is no change of settings");
    });
}

#[test]
fn the_first_admin_is_made_once() {
    on_each(|db| async move {
        let store = db.open().await;
        assert!(!store.has_admin().await.unwrap());
        let err = store.bootstrap("ann", "short", &ann()).await.unwrap_err();
        assert_eq!(err.to_string(), "the password has 5 characters, the least is 12");
        let (one, two) = (db.open().await, db.open().await);
        let by = ann();
        let (a, b) = tokio::join!(one.bootstrap("ann", PASSWORD, &by), two.bootstrap("ben", PASSWORD, &by));
        assert_eq!([&a, &b].into_iter().filter(|done| done.is_ok()).count(), 1, "{a:?} {b:?}");
        assert!(store.has_admin().await.unwrap());
        let err = store.bootstrap("eve", PASSWORD, &ann()).await.unwrap_err();
        assert!(err.to_string().contains("there is one"), "{err}");
    });
}

#[test]
fn the_last_admin_stays() {
    on_each(|db| async move {
        let store = db.open().await;
        store.bootstrap("ann", PASSWORD, &ann()).await.unwrap();
        let less = UserChange { role: Some(Role::Editor), ..UserChange::default() };
        let off = UserChange { disabled: Some(true), ..UserChange::default() };
        for change in [&less, &off] {
            let err = store.change_user("ann", change, Expected::Any, &ann()).await.unwrap_err();
            assert_eq!(err.to_string(), "user `ann` is the last admin");
        }
        assert_eq!(store.user("ann").await.unwrap().revision, 1, "nothing was changed");
        let ben = store.add_user("ben", Role::Admin, PASSWORD, &ann()).await.unwrap();
        assert_eq!((ben.role, ben.revision), (Role::Admin, 1));
        assert!(store.add_user("ben", Role::Viewer, PASSWORD, &ann()).await.is_err(), "there is one");
        let changed = store.change_user("ann", &less, Expected::Revision(1), &ann()).await.unwrap();
        assert_eq!((changed.role, changed.revision), (Role::Editor, 2));
        let err = store.change_user("ann", &less, Expected::Revision(1), &ann()).await.unwrap_err();
        assert_eq!(err.to_string(), "user `ann` is at version 2, expected 1");
        assert!(store.change_user("ben", &off, Expected::Any, &ann()).await.is_err());
    });
}

#[test]
fn sessions_begin_go_on_and_end() {
    on_each(|db| async move {
        let store = db.open().await;
        store.bootstrap("ann", PASSWORD, &ann()).await.unwrap();
        let first = log_in(&store, "ann", PASSWORD, "1.2.3.4").await.unwrap();
        let session = store.session(&first.token).await.unwrap().unwrap();
        assert_eq!((session.user.name.as_str(), session.csrf.as_str()), ("ann", first.csrf.as_str()));
        assert_eq!(store.session("nothing").await.unwrap(), None);
        // A login ends the session of the browser, so that nobody can plant a session (fixation).
        let second = {
            let attempt = LoginAttempt {
                name: "ann",
                password: PASSWORD,
                session: Some(&first.token),
                ..LoginAttempt::default()
            };
            store.log_in(&attempt).await.unwrap()
        };
        assert!(second.token != first.token && second.csrf != first.csrf);
        assert_eq!(store.session(&first.token).await.unwrap(), None);
        store.log_out(&second.token).await.unwrap();
        assert_eq!(store.session(&second.token).await.unwrap(), None);
        // A new password ends every session, and so does disabling.
        let third = log_in(&store, "ann", PASSWORD, "1.2.3.4").await.unwrap();
        let change = UserChange { password: Some("another long password".into()), ..UserChange::default() };
        store.change_user("ann", &change, Expected::Any, &ann()).await.unwrap();
        assert_eq!(store.session(&third.token).await.unwrap(), None);
        assert!(matches!(log_in(&store, "ann", PASSWORD, "1.2.3.4").await, Err(LoginError::Wrong { .. })));
        let fourth = log_in(&store, "ann", "another long password", "1.2.3.4").await.unwrap();
        testing::execute(&db.database, "UPDATE users SET disabled = 1").await.unwrap();
        assert_eq!(store.session(&fourth.token).await.unwrap(), None);
        testing::execute(&db.database, "UPDATE users SET disabled = 0; UPDATE sessions SET seen_ms = 5")
            .await
            .unwrap();
        assert_eq!(store.session(&fourth.token).await.unwrap(), None, "not used for an hour");
    });
}
