//! Finds crypto wallets. Bitcoin, Litecoin and Tron addresses and private keys are found by their checksums,
//! Ethereum and Monero addresses by their form.

use super::{Found, pattern, push, stands_alone};
use crate::privacy::EntityKind;
use crate::privacy::checksum::{base58check, bech32};

pattern!(BASE58, r"[13LMTDA][1-9A-HJ-NP-Za-km-z]{25,34}");
pattern!(BECH32, r"(?:bc|tb|ltc)1[02-9ac-hj-np-z]{11,87}|(?:BC|TB|LTC)1[02-9AC-HJ-NP-Z]{11,87}");
pattern!(ETHEREUM, r"0[xX][0-9a-fA-F]{40}");
pattern!(PRIVATE, r"[5KL][1-9A-HJ-NP-Za-km-z]{50,51}|[xyz]prv[1-9A-HJ-NP-Za-km-z]{107,108}");
pattern!(MONERO, r"[48][0-9AB][1-9A-HJ-NP-Za-km-z]{93}");

pub(super) fn find(text: &str, found: &mut Vec<Found>) {
    let mut add = |m: regex::Match<'_>, is: fn(&str) -> bool| {
        if stands_alone(text, &m.range()) && is(m.as_str()) {
            push(found, EntityKind::Wallet, m.range());
        }
    };
    BASE58.find_iter(text).for_each(|m| add(m, |text| base58check(text, 25)));
    PRIVATE
        .find_iter(text)
        .for_each(|m| add(m, |text| [37, 38, 82].into_iter().any(|bytes| base58check(text, bytes))));
    BECH32.find_iter(text).for_each(|m| add(m, bech32));
    ETHEREUM.find_iter(text).for_each(|m| add(m, |_| true));
    MONERO.find_iter(text).for_each(|m| add(m, |_| true));
}
