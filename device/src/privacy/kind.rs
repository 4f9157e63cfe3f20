//! The kinds of private values.

use serde::{Deserialize, Serialize};

/// Kind of a replaced value; its label is part of the placeholder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum EntityKind {
    /// Text that already looked like a placeholder; it is replaced too, so that it is restored exactly.
    Text,
    /// Name of a person.
    Person,
    /// Street with a house number, or a town.
    Place,
    /// Name of an organisation.
    Org,
    /// Text from the user's own list.
    Name,
    /// User name in the path of a home folder.
    User,
    /// Telephone number.
    Phone,
    /// IPv4 or IPv6 address.
    Ip,
    /// Hardware address of a network device.
    Mac,
    /// Payment card number (Luhn checksum).
    Card,
    /// Number of an identity card, a passport, social security or tax.
    Id,
    /// E-mail address.
    Email,
    /// International bank account number (mod 97 checksum).
    Iban,
    /// Address of a crypto wallet.
    Wallet,
    /// Password, PIN, one-time code, or the credentials in a URL.
    Password,
    /// API key, access token or private key.
    Key,
}

impl EntityKind {
    /// Every kind, weakest first. If two findings overlap, the later kind in this list is used.
    pub const ALL: [EntityKind; 16] = [
        Self::Text,
        Self::Person,
        Self::Place,
        Self::Org,
        Self::Name,
        Self::User,
        Self::Phone,
        Self::Ip,
        Self::Mac,
        Self::Card,
        Self::Id,
        Self::Email,
        Self::Iban,
        Self::Wallet,
        Self::Password,
        Self::Key,
    ];

    /// Checks for a kind that names are found by, and not a form of its own. Names are looked for in the case
    /// in which they were written.
    pub fn is_name(self) -> bool {
        matches!(self, Self::Person | Self::Place | Self::Org)
    }

    /// Returns the words for one value and for several, for people.
    pub fn words(self) -> [&'static str; 2] {
        match self {
            Self::Text => ["text like a placeholder", "texts like placeholders"],
            Self::Person | Self::Name => ["name", "names"],
            Self::Place => ["place", "places"],
            Self::Org => ["organisation", "organisations"],
            Self::User => ["user name", "user names"],
            Self::Phone => ["phone", "phones"],
            Self::Ip => ["IP address", "IP addresses"],
            Self::Mac => ["MAC address", "MAC addresses"],
            Self::Card => ["card", "cards"],
            Self::Id => ["ID", "IDs"],
            Self::Email => ["e-mail address", "e-mail addresses"],
            Self::Iban => ["IBAN", "IBANs"],
            Self::Wallet => ["wallet", "wallets"],
            Self::Password => ["password", "passwords"],
            Self::Key => ["key", "keys"],
        }
    }

    /// Returns the word inside the placeholder, for example `EMAIL` in `[EMAIL_1]`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Text => "TEXT",
            Self::Person => "PERSON",
            Self::Place => "PLACE",
            Self::Org => "ORG",
            Self::Name => "NAME",
            Self::User => "USER",
            Self::Phone => "PHONE",
            Self::Ip => "IP",
            Self::Mac => "MAC",
            Self::Card => "CARD",
            Self::Id => "ID",
            Self::Email => "EMAIL",
            Self::Iban => "IBAN",
            Self::Wallet => "WALLET",
            Self::Password => "PASSWORD",
            Self::Key => "KEY",
        }
    }
}
