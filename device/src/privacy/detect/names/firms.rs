//! Organisations by the form of their names: a legal form behind, or a word for what they are.

use super::super::push;
use super::cues::{self, has};
use super::lists::lists;
use super::pattern;
use crate::privacy::EntityKind;
use crate::privacy::detect::Found;
use std::ops::Range;

pattern!(LEGAL_FORM, concat!(
    r"(?:\b[\p{Lu}0-9][\p{L}0-9.'’-]*,?\s(?:(?:&|\+|und|and|y|e|de|del|of|für|am|an der)\s){0,2}){1,6}",
    r"(?:(?:m?GmbH|gGmbH|UG|AG|KG|OHG|GbR|SE|KGaA)\b(?:\s&\sCo\.?(?:\s(?:KG|OHG|KGaA))?)?|e\.\s?(?:V|G|K)\.|eG\b|",
    r"(?:Ltd|Limited|Inc|Incorporated|LLC|LLP|PLC|plc|Corp|Corporation|Pty|GmbH)\b\.?|& Co\.?|",
    r"S\.\s?(?:L|A|C|R\.L)\.(?:\s?U\.)?(?:\sde\sC\.\s?V\.)?|(?:SL|SLU|SA|SRL|BV|NV|Oy|AB)\b|y Asociados\b|e Hijos\b|Hermanos\b)",
));
pattern!(KIND_AFTER, concat!(
    r"(?:\b(?:St\.\s)?\p{Lu}[\p{L}.'’-]*\s(?:(?:&|and|of)\s)?){1,4}",
    r"(?:Hospital|Clinic|University|College|School|Academy|Bank|Foundation|Institute|Church|Solutions|Group|Holdings|Partners|",
    r"Associates|Logistics|Consulting|Industries|Enterprises|Bakery|Pharmacy|Hotel|Restaurant|Museum|Trust|Society|Association|",
    r"Systems|Technologies|Laboratories|Labs|Motors|Airlines|Insurance|Brothers|Company|Agency|Practice|Studio|Studios)\b",
));
pattern!(KIND_BEFORE, concat!(
    r"\b(?:Universität|Hochschule|Praxis|Klinik|Klinikum|Krankenhaus|Stadtwerke|Volksbank|Sparkasse|Raiffeisenbank|Grundschule|",
    r"Gymnasium|Realschule|Gesamtschule|Kita|Kindergarten|Verein|Kanzlei|Apotheke|Bäckerei|Metzgerei|Autohaus|Hotel|Gasthof|",
    r"Restaurant|Spedition|Stiftung|Landratsamt|Amtsgericht|Bauunternehmen|Tischlerei|Universidad|Banco|Clínica|Colegio|Hospital|",
    r"Instituto|Fundación|Grupo|Transportes|Construcciones|Panadería|Talleres|Taller|Farmacia|Restaurante|Bufete|Despacho|",
    r"Asociación|Academia|Cooperativa|Editorial|Librería|Ferretería|Supermercados|Seguros|Inmobiliaria|Bodegas|Caja|Escuela|",
    r"Gestoría|Parroquia|Residencia)\s",
    r"(?:(?:am|an der|im|der|zum|zur|St\.|Sankt|de la|de los|de las|del|de|la|los)\s)*(\p{Lu}[\p{L}'’-]+)",
    r"(?:\s(?:(?:de la|de los|del|de|y|am|an der|und)\s)?\p{Lu}[\p{L}'’-]+){0,4}",
));
pattern!(KIND_JOINED, r"\b\p{Lu}[\p{L}]+(?:-\p{Lu}[\p{L}]+)*-(?:Krankenhaus|Klinik|Klinikum|Schule|Gymnasium|Stiftung|Universität|Hospital|Bank|Apotheke|Werke|Gruppe)\b");

/// Finds organisations by the form of their names.
pub(super) fn find(text: &str, found: &mut Vec<Found>) {
    for m in LEGAL_FORM.find_iter(text) {
        add(text, m.range(), 1, found);
    }
    for m in KIND_AFTER.find_iter(text) {
        add(text, m.range(), 1, found);
    }
    for groups in KIND_BEFORE.captures_iter(text) {
        let range = groups.get_match().range();
        let name = groups.get(1).map_or("", |name| name.as_str());
        let of = groups.get_match().as_str().split_whitespace().nth(1).is_some_and(|word| word.starts_with(char::is_lowercase));
        if !lists().is_common(name) && !lists().is_public(name) || of && !lists().is_public(name) {
            push(found, EntityKind::Org, range);
        }
    }
    for m in KIND_JOINED.find_iter(text) {
        push(found, EntityKind::Org, m.range());
    }
}

/// Adds an organisation without the words of the sentence at its start, if a name is left.
fn add(text: &str, mut range: Range<usize>, kind_words: usize, found: &mut Vec<Found>) {
    let starts: Vec<(usize, &str)> = {
        let own = &text[range.clone()];
        own.split_whitespace().map(|word| (word.as_ptr() as usize - own.as_ptr() as usize, word)).collect()
    };
    let base = range.start;
    let bare = |word: &str| word.trim_end_matches([',', '.', ':']).to_owned();
    let mut first = 0;
    // Function words and roles at the start of a sentence are not a part of the name.
    while first + kind_words < starts.len() {
        let word = bare(starts[first].1);
        let small = word.starts_with(char::is_lowercase);
        let lead = has(cues::ARTICLES, &word)
            || has(cues::FIRM_LABELS, &word)
            || has(cues::ROLES, &word)
            || has(LEADS, &word);
        if !small && !lead {
            break;
        }
        first += 1;
    }
    let name = &starts[first..starts.len().saturating_sub(kind_words)];
    let own = |word: &str| {
        let word = bare(word);
        word.starts_with(char::is_uppercase) && !lists().is_public(&word) && (!lists().is_common(&word) || lists().is_surname(&word))
    };
    let ampersand = name.iter().any(|(_, word)| *word == "&") && name.len() >= 2;
    if name.iter().any(|(_, word)| own(word)) || ampersand {
        range.start = base + starts[first].0;
        push(found, EntityKind::Org, range);
    }
}

/// Words at the start of a sentence.
const LEADS: &[&str] = &[
    "our", "my", "his", "her", "their", "your", "its", "at", "for", "from", "with", "by", "in", "on", "of", "when", "if", "unser",
    "unsere", "mein", "meine", "bei", "von", "mit", "für", "wenn", "nuestra", "nuestro", "mi", "su", "en", "de", "con", "para", "i",
    "we", "he", "she", "they", "it", "and", "und", "y", "but", "contact", "dear",
];
