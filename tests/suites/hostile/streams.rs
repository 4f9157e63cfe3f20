//! Readers that disconnect, and tenants that guess each other's prompts, against the real process.

use baton_e2e::hostile::neighbour;
use baton_e2e::hostile::streams::{abandon, figures, figures_when, form, look};
use baton_e2e::hostile::tenants::Tenants;

use super::service;

/// Number of abandoned streams: twice the number of slots.
const ABANDONED: u64 = 8;

#[tokio::test]
async fn abandoned_streams_hold_no_slot() {
    let (_cloud, address) = service(&["--slots=4"]).await;
    let count = |figures: &serde_json::Value, name: &str| figures[name].as_u64().expect("a count");
    let before = count(&figures(address).await.expect("figures"), "requests_ended_total");
    for seed in 0..ABANDONED {
        abandon(address, seed).await.expect("it begins");
    }
    let unread =
        figures_when(address, |figures| count(figures, "slots_used") == 0).await.expect("no slot is held");
    assert!(count(&unread, "parked") > 0, "they have not ended, they wait for their readers: {unread}");
    for turn in 0..4 {
        neighbour(address, turn, 20).await.expect("the slots serve others");
    }
    let gone =
        figures_when(address, |figures| count(figures, "parked") == 0).await.expect("nobody comes back");
    assert_eq!(count(&gone, "requests_ended_total") - before, ABANDONED + 4, "{gone}");
}

#[tokio::test]
async fn a_tenant_s_prompt_is_not_found_by_another_tenant_s_guess() {
    let folder = tempfile::tempdir().expect("a folder");
    let tenants = Tenants::start(folder.path(), &["one", "other"], &[], &["--threads=2"]).await;
    let Tenants { cloud: _cloud, server: address, keys, .. } = tenants.expect("the service starts");
    let [one, other] = &keys[..] else { panic!("two keys") };
    for turn in 0..4 {
        look(address, one, &form(turn, 47_110)).await.expect("an answer");
        let guess = look(address, other, &form(turn, 47_110)).await.expect("an answer");
        assert_eq!(guess.cached_tokens, 0, "the right guess is told like any other");
        let own = look(address, one, &form(turn, 47_110)).await.expect("an answer");
        assert!(own.cached_tokens > 100 && own.cached_tokens % 32 == 0, "{own:?}");
    }
}
