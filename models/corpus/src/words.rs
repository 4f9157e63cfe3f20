//! The word lists that documents are made of.
//!
//! Words are short and common, so that a byte-pair vocabulary of about a thousand entries holds most of them
//! whole. Values are an adjective and a noun: the pair is unique in its document, and its noun is too in the
//! first [`NOUNS`]`.len()` sentences, so that copying is never in doubt about what comes next.

/// First parts of invented names; a document uses each once before it uses one again.
pub const NAME_HEADS: [&str; 48] = [
    "Al", "Bar", "Bel", "Bor", "Bran", "Cal", "Cor", "Dal", "Dor", "Dun", "El", "Er", "Fal", "Fen", "Flor",
    "Gal", "Gil", "Gor", "Gren", "Hal", "Hel", "Hol", "Il", "Jor", "Kal", "Kes", "Kir", "Lan", "Lin", "Lun",
    "Mal", "Mel", "Mor", "Nal", "Nor", "Ol", "Os", "Pal", "Quin", "Ral", "Ros", "Sel", "Tam", "Tor", "Ul",
    "Vel", "Wen", "Yar",
];

/// Last parts of invented names.
pub const NAME_TAILS: [&str; 32] = [
    "bara", "beck", "bury", "dale", "denor", "dith", "gard", "gate", "holm", "kost", "land", "lemar", "mina",
    "mond", "morra", "nath", "nessa", "tova", "wick", "vik", "dora", "rin", "sted", "vane", "ford", "mere",
    "lok", "hurst", "donna", "burn", "gar", "nell",
];

/// What a section can be about.
pub const KINDS: [&str; 16] = [
    "tower",
    "mill",
    "bridge",
    "school",
    "chapel",
    "garden",
    "market",
    "harbour",
    "library",
    "inn",
    "farm",
    "mine",
    "castle",
    "station",
    "theatre",
    "lighthouse",
];

/// Attributes whose value is an adjective and a noun.
pub const PHRASE_ATTRIBUTES: [&str; 18] = [
    "password",
    "emblem",
    "treasure",
    "prize",
    "symbol",
    "gift",
    "relic",
    "toy",
    "trophy",
    "sign",
    "pride",
    "secret",
    "charm",
    "token",
    "offering",
    "favourite",
    "curse",
    "legacy",
];

/// Attributes whose value is a person.
pub const PERSON_ATTRIBUTES: [&str; 4] = ["keeper", "owner", "builder", "guide"];

/// Attributes whose value is a year.
pub const YEAR_ATTRIBUTES: [&str; 2] = ["founding year", "closing year"];

/// First words of a value.
pub const ADJECTIVES: [&str; 64] = [
    "amber", "ancient", "big", "bitter", "black", "blue", "brass", "bright", "broken", "brown", "calm",
    "clean", "clear", "cold", "copper", "cracked", "crooked", "dark", "deep", "dry", "dusty", "empty",
    "fine", "flat", "fresh", "gentle", "giant", "gold", "green", "grey", "heavy", "hidden", "high", "hollow",
    "iron", "large", "light", "lost", "marble", "narrow", "open", "pale", "paper", "plain", "proud", "quiet",
    "red", "rough", "round", "salt", "sharp", "silent", "silver", "small", "soft", "solid", "stone",
    "strong", "sweet", "tall", "velvet", "warm", "white", "wild",
];

/// Last words of a value.
pub const NOUNS: [&str; 128] = [
    "acorn", "anchor", "apple", "apron", "arrow", "axe", "badge", "banner", "barrel", "basket", "beacon",
    "bead", "bear", "bell", "belt", "blanket", "boat", "bone", "book", "boot", "bottle", "bowl", "box",
    "brick", "broom", "brush", "bucket", "button", "cabin", "cable", "cage", "cake", "camel", "candle",
    "cane", "carpet", "cart", "chain", "chair", "chest", "clock", "cloak", "coat", "coin", "comb", "crane",
    "crow", "crown", "cup", "curtain", "deer", "desk", "dice", "door", "drum", "duck", "eagle", "falcon",
    "fan", "feather", "fiddle", "flag", "flute", "fork", "fox", "frog", "glass", "glove", "goat", "goose",
    "hammer", "harp", "hat", "hawk", "helmet", "horn", "horse", "jacket", "jar", "jewel", "kettle", "key",
    "kite", "knife", "ladder", "lamp", "lantern", "lemon", "letter", "lion", "lock", "map", "mask", "medal",
    "mirror", "needle", "nest", "oar", "otter", "owl", "parrot", "pearl", "pen", "pillow", "pipe", "plate",
    "plum", "pot", "purse", "raven", "ribbon", "ring", "robe", "rope", "saddle", "sail", "scarf", "shell",
    "shield", "spear", "spoon", "statue", "sword", "table", "tent", "tiger", "wheel", "wolf",
];

/// First names of persons.
pub const FIRST_NAMES: [&str; 24] = [
    "Ada", "Anna", "Ben", "Clara", "David", "Emma", "Eva", "Frank", "Grace", "Hugo", "Ivan", "Jack", "Karl",
    "Laura", "Leo", "Lucy", "Max", "Nina", "Oscar", "Paul", "Rosa", "Sam", "Tom", "Vera",
];

/// Family names of persons.
pub const FAMILY_NAMES: [&str; 24] = [
    "Adams", "Baker", "Bishop", "Brook", "Carter", "Cook", "Cooper", "Field", "Fisher", "Ford", "Hill",
    "Hunter", "King", "Mason", "Miller", "Page", "Parker", "Potter", "Reed", "Shaw", "Smith", "Stone",
    "Ward", "Wood",
];

/// Words that lead into a fact; each ends where `the {attribute} of {name} is {value}.` goes on.
pub const LEADS: [&str; 16] = [
    "The",
    "By custom the",
    "As people say, the",
    "In old books the",
    "Even today the",
    "For many the",
    "Since the war the",
    "After the flood the",
    "On paper the",
    "It seems that the",
    "We read that the",
    "Children know that the",
    "Of course the",
    "By law the",
    "Some say that the",
    "To this day the",
];

/// Filler before the subject's name.
pub const FILLER_HEADS: [&str; 10] = [
    "Travellers leave",
    "Many visit",
    "Poets praise",
    "Artists paint",
    "Merchants pass",
    "Farmers walk to",
    "Students talk about",
    "Guests remember",
    "Sailors look for",
    "Families return to",
];

/// Filler between the subject's name and a value.
pub const FILLER_TAILS: [&str; 8] = [
    "with the",
    "for the",
    "because of the",
    "after the",
    "before the",
    "without the",
    "despite the",
    "like the",
];
