//! Streets with a house number, and towns with a postcode.

use super::super::push;
use super::lists::lists;
use super::pattern;
use crate::privacy::EntityKind;
use crate::privacy::detect::Found;

pattern!(
    ENGLISH_STREET,
    concat!(
        r"\b[0-9]{1,5}[A-Za-z]? (?:[NSEW]\.? )?(?:\p{Lu}[\p{L}.'’-]* ){1,4}",
        r"(?:Street|St|Road|Rd|Lane|Ln|Avenue|Ave|Drive|Dr|Close|Court|Ct|Crescent|Terrace|Place|Pl|Way|Boulevard|Blvd|",
        r"Square|Sq|Row|Gardens|Grove|Hill|Parkway|Pkwy|Highway|Hwy|Mews|Walk|View|Circle|Cir|Trail|Gate|Park|Green)\b",
        r"(?:,? (?:Apt|Apartment|Unit|Suite|Flat)\.? ?\w+)?",
    )
);
pattern!(
    GERMAN_STREET,
    concat!(
        r"(?:(?:Alte[rn]?|Neue[rn]?|Große|Kleine|Obere|Untere|Hintere|Vordere|Lange|Hohe|Breite|Am|An der|Zum|Zur|Im) )?",
        r"\b\p{Lu}[\p{L}-]*(?:straße|strasse|str\.|Straße|Str\.|weg|Weg|gasse|allee|platz|ring|damm|ufer|steig|pfad|",
        r"chaussee|markt|promenade|hof|graben|wall|kamp|stieg|berg) [0-9]{1,4}(?: ?[a-h]\b)?",
    )
);
pattern!(
    GERMAN_LANE,
    concat!(
        r"\b(?:Am|An der|An den|Im|In der|In den|Auf der|Auf dem|Zum|Zur|Unter den|Hinter der|Hinter dem|Vor dem) ",
        r"(?:\p{Lu}[\p{L}]+en )?(\p{Lu}[\p{L}-]+) [0-9]{1,4}(?: ?[a-h]\b)?",
    )
);
pattern!(
    SPANISH_STREET,
    concat!(
        r"\b(?:Calle|calle|C/|C\.|Avenida|avenida|Avda\.|Av\.|Plaza|plaza|Pza\.|Paseo|paseo|Camino|camino|Carretera|Ctra\.|",
        r"Ronda|Travesía|Callejón|Glorieta|Bulevar|Urbanización|Pasaje|Cuesta) ?(?:(?:de|del|la|las|los|el) ){0,3}",
        r"\p{Lu}[\p{L}.]*(?: (?:(?:de|del|la|las|los|y) ){0,2}\p{Lu}[\p{L}.]*){0,4},? (?:n\.? ?º ?)?[0-9]{1,4}\b",
        r"(?:,? [0-9]{1,2}\.?[ºª°](?: [A-Z0-9]\b)?)?",
    )
);
pattern!(US_TOWN, r"(?:\p{Lu}[\p{L}'’-]+\.? ){0,2}\p{Lu}[\p{L}'’-]+, [A-Z]{2} [0-9]{5}(?:-[0-9]{4})?\b");
pattern!(UK_TOWN, r"\b(?:\p{Lu}[\p{L}'’-]+,? ){0,3}[A-Z]{1,2}[0-9][A-Z0-9]? [0-9][A-Z]{2}\b");
pattern!(
    POSTCODE_TOWN,
    concat!(
        r"\b(?:[A-Z]-)?[0-9]{5} (\p{Lu}[\p{L}-]+)",
        r"(?: (?:(?:am|an der|im|ob der|bei|de|del|de la) )?\p{Lu}[\p{L}-]+){0,2}",
    )
);

/// Words that a number follows without a street.
const NUMBERED: &[&str] = &[
    "Bundesstraße",
    "Landstraße",
    "Kreisstraße",
    "Arbeitsplatz",
    "Sitzplatz",
    "Stellplatz",
    "Parkplatz",
    "Platz",
    "Umweg",
    "Rundweg",
    "Boxring",
    "Startplatz",
    "Listenplatz",
    "Bahnhof",
    "Supermarkt",
    "Staatsstraße",
    "Rang",
];

/// Finds places by their form.
pub(super) fn find(text: &str, found: &mut Vec<Found>) {
    if !text.bytes().any(|byte| byte.is_ascii_digit()) {
        return;
    }
    for street in [&*ENGLISH_STREET, &*SPANISH_STREET, &*US_TOWN, &*UK_TOWN] {
        for m in street.find_iter(text) {
            push(found, EntityKind::Place, m.range());
        }
    }
    for m in GERMAN_STREET.find_iter(text) {
        let name = m.as_str().split(|c: char| c.is_whitespace()).next().unwrap_or_default();
        if !NUMBERED.contains(&name) && name.chars().count() > 3 {
            push(found, EntityKind::Place, m.range());
        }
    }
    for groups in GERMAN_LANE.captures_iter(text) {
        let (all, noun) = (groups.get_match(), groups.get(1));
        let name = noun.map_or("", |noun| noun.as_str());
        if !lists().is_public(name)
            && (!lists().is_common(name, true) || LANES.iter().any(|end| name.to_lowercase().ends_with(end)))
        {
            push(found, EntityKind::Place, all.range());
        }
    }
    for groups in POSTCODE_TOWN.captures_iter(text) {
        let name = groups.get(1).map_or("", |town| town.as_str());
        let is_written = name.contains(char::is_lowercase);
        if is_written && (!lists().is_common(name, true) || lists().is_town(name)) {
            push(found, EntityKind::Place, groups.get_match().range());
        }
    }
}

/// Endings of words that streets are named after.
const LANES: &[&str] = &[
    "bach", "berg", "feld", "wald", "hof", "teich", "weiher", "brunnen", "kirche", "park", "anger", "wiese",
    "hang", "mühle", "see", "ziegelei", "tor", "markt", "schule", "linde", "linden", "garten",
];
