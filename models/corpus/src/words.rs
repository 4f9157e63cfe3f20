//! The word lists from which documents are made.
//!
//! Words are short and common, so that a byte-pair vocabulary of about a thousand entries holds most of them
//! whole. A value is an adjective and a plural noun. The pair is unique in its document; the noun is unique
//! too in the first [`NOUNS`]`.len()` sentences. Leads are short, so that the four words before any word
//! determine the next one; copying is never ambiguous.

/// First parts of invented names; a document uses each once before it repeats one.
pub(crate) const NAME_HEADS: [&str; 48] = [
    "Al", "Bar", "Bel", "Bor", "Bran", "Cal", "Cor", "Dal", "Dor", "Dun", "El", "Er", "Fal", "Fen", "Flor",
    "Gal", "Gil", "Gor", "Gren", "Hal", "Hel", "Hol", "Il", "Jor", "Kal", "Kes", "Kir", "Lan", "Lin", "Lun",
    "Mal", "Mel", "Mor", "Nal", "Nor", "Ol", "Os", "Pal", "Quin", "Ral", "Ros", "Sel", "Tam", "Tor", "Ul",
    "Vel", "Wen", "Yar",
];

/// Last parts of invented names.
pub(crate) const NAME_TAILS: [&str; 32] = [
    "bara", "beck", "bury", "dale", "denor", "dith", "gard", "gate", "holm", "kost", "land", "lemar", "mina",
    "mond", "morra", "nath", "nessa", "tova", "wick", "vik", "dora", "rin", "sted", "vane", "ford", "mere",
    "lok", "hurst", "donna", "burn", "gar", "nell",
];

/// Kinds of places that a section can be about.
pub(crate) const KINDS: [&str; 16] = [
    "tower",
    "mill",
    "bridge",
    "school",
    "chapel",
    "garden",
    "market",
    "harbour",
    "library",
    "house",
    "farm",
    "mine",
    "castle",
    "station",
    "theatre",
    "lighthouse",
];

/// Attributes whose value is an adjective and a noun.
pub(crate) const PHRASE_ATTRIBUTES: [&str; 18] = [
    "treasures",
    "prizes",
    "symbols",
    "gifts",
    "relics",
    "toys",
    "trophies",
    "signs",
    "secrets",
    "charms",
    "tokens",
    "offerings",
    "crafts",
    "curses",
    "legacies",
    "emblems",
    "rewards",
    "goods",
];

/// Attributes whose value is a person.
pub(crate) const PERSON_ATTRIBUTES: [&str; 4] = ["keeper", "owner", "builder", "guide"];

/// Attributes whose value is a number of four digits.
pub(crate) const NUMBER_ATTRIBUTES: [&str; 2] = ["year", "number"];

/// First words of a value.
pub(crate) const ADJECTIVES: [&str; 64] = [
    "amber", "ancient", "big", "bitter", "black", "blue", "brass", "bright", "broken", "brown", "calm",
    "clean", "clear", "cold", "copper", "cracked", "crooked", "dark", "deep", "dry", "dusty", "empty",
    "fine", "flat", "fresh", "gentle", "giant", "gold", "green", "grey", "heavy", "hidden", "high", "hollow",
    "iron", "large", "light", "lost", "marble", "narrow", "open", "pale", "paper", "plain", "proud", "quiet",
    "red", "rough", "round", "salt", "sharp", "silent", "silver", "small", "soft", "solid", "stone",
    "strong", "sweet", "tall", "velvet", "warm", "white", "wild",
];

/// Last words of a value.
pub(crate) const NOUNS: [&str; 128] = [
    "acorns", "anchors", "apples", "aprons", "arrows", "axes", "badges", "banners", "barrels", "baskets",
    "beacons", "beads", "bears", "bells", "belts", "blankets", "boats", "bones", "books", "boots", "bottles",
    "bowls", "boxes", "bricks", "brooms", "brushes", "buckets", "buttons", "cabins", "cables", "cages",
    "cakes", "camels", "candles", "canes", "carpets", "carts", "chains", "chairs", "chests", "clocks",
    "cloaks", "coats", "coins", "combs", "cranes", "crows", "crowns", "cups", "curtains", "deer", "desks",
    "dice", "doors", "drums", "ducks", "eagles", "falcons", "fans", "feathers", "fiddles", "flags", "flutes",
    "forks", "foxes", "frogs", "glasses", "gloves", "goats", "geese", "hammers", "harps", "hats", "hawks",
    "helmets", "horns", "horses", "jackets", "jars", "jewels", "kettles", "keys", "kites", "knives",
    "ladders", "lamps", "lanterns", "lemons", "letters", "lions", "locks", "maps", "masks", "medals",
    "mirrors", "needles", "nests", "oars", "otters", "owls", "parrots", "pearls", "pens", "pillows", "pipes",
    "plates", "plums", "pots", "purses", "ravens", "ribbons", "rings", "robes", "ropes", "saddles", "sails",
    "scarves", "shells", "shields", "spears", "spoons", "statues", "swords", "tables", "tents", "tigers",
    "wheels", "wolves",
];

/// First names of persons.
pub(crate) const FIRST_NAMES: [&str; 24] = [
    "Ada", "Anna", "Ben", "Clara", "David", "Emma", "Eva", "Frank", "Grace", "Hugo", "Ivan", "Jack", "Karl",
    "Laura", "Leo", "Lucy", "Max", "Nina", "Oscar", "Paul", "Rosa", "Sam", "Tom", "Vera",
];

/// Family names of persons.
pub(crate) const FAMILY_NAMES: [&str; 24] = [
    "Adams", "Baker", "Bishop", "Brook", "Carter", "Cook", "Cooper", "Field", "Fisher", "Ford", "Hill",
    "Hunter", "King", "Mason", "Miller", "Page", "Parker", "Potter", "Reed", "Shaw", "Smith", "Stone",
    "Ward", "Wood",
];

/// Words that begin a fact; `{attribute} of {name} is {value}.` follows them.
pub(crate) const LEADS: [&str; 16] = [
    "The",
    "Today the",
    "Often the",
    "Indeed the",
    "Clearly the",
    "Perhaps the",
    "Lately the",
    "Still the",
    "Surely the",
    "Now the",
    "Oddly the",
    "Sadly the",
    "Luckily the",
    "Officially the",
    "Here the",
    "Usually the",
];

/// Words of a filler sentence before the subject's name.
pub(crate) const FILLER_HEADS: [&str; 10] = [
    "Travellers leave",
    "Many visit",
    "Poets praise",
    "Artists paint",
    "Merchants pass",
    "Farmers cross",
    "Students study",
    "Guests remember",
    "Sailors watch",
    "Families love",
];

/// Words of a filler sentence between the subject's name and a value.
pub(crate) const FILLER_TAILS: [&str; 8] =
    ["with", "for", "after", "before", "without", "despite", "like", "near"];

/// A synonym for each attribute; no document and no training question holds it.
pub(crate) const SYNONYMS: [(&str, &str); 24] = [
    ("treasures", "riches"),
    ("prizes", "awards"),
    ("symbols", "marks"),
    ("gifts", "presents"),
    ("relics", "remains"),
    ("toys", "playthings"),
    ("trophies", "winnings"),
    ("signs", "notices"),
    ("secrets", "mysteries"),
    ("charms", "amulets"),
    ("tokens", "tickets"),
    ("offerings", "donations"),
    ("crafts", "handiwork"),
    ("curses", "hexes"),
    ("legacies", "bequests"),
    ("emblems", "crests"),
    ("rewards", "bonuses"),
    ("goods", "wares"),
    ("keeper", "caretaker"),
    ("owner", "proprietor"),
    ("builder", "constructor"),
    ("guide", "leader"),
    ("year", "date"),
    ("number", "figure"),
];

/// Frames of questions about `{attribute}` of `{name}`; no training question has one of these forms.
pub(crate) const PARAPHRASE_FRAMES: [&str; 6] = [
    "For {name}, say which {attribute} apply.",
    "{name} has which {attribute}?",
    "Name the {attribute} that belong to {name}.",
    "Regarding {name}: its {attribute}?",
    "I want to know about {name}, namely its {attribute}.",
    "Which {attribute} does one find at {name}?",
];
