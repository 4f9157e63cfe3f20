//! Organisations by the form of their names: a legal form behind, or a word for what they are.

use super::super::{Certainty, push, push_as};
use super::cues::{self, has};
use super::lists::lists;
use super::pattern;
use crate::privacy::EntityKind;
use crate::privacy::detect::Found;
use std::ops::Range;

pattern!(
    LEGAL_FORM,
    concat!(
        r"(?:\b[\p{Lu}0-9][\p{L}0-9.'’-]* (?:(?:&|\+|und|and|y|e|de|del|of|für|am|an der) ){0,2}){0,5}",
        r"\b[\p{Lu}0-9][\p{L}0-9.'’-]*,? ",
        r"(?:(?:m?GmbH|gGmbH|UG|AG|KG|OHG|GbR|SE|KGaA)\b(?: & Co\.?(?: (?:KG|OHG|KGaA))?)?|e\. ?(?:V|G|K)\.|eG\b|",
        r"(?:Ltd|Limited|Inc|Incorporated|LLC|LLP|PLC|plc|Corp|Corporation|Pty|GmbH)\b\.?|& Co\.?|",
        r"S\. ?(?:L|A|C|R\.L)\.(?: ?U\.)?(?: de C\. ?V\.)?|(?:SL|SLU|SA|SRL|BV|NV|Oy|AB)\b|y Asociados\b|e Hijos\b|Hermanos\b)",
    )
);
pattern!(
    KIND_AFTER,
    concat!(
        r"(?:\b(?:St\. )?\p{Lu}[\p{L}.'’-]* (?:(?:&|and|of) )?){1,4}",
        r"(?:Hospital|Clinic|University|College|School|Academy|Bank|Foundation|Institute|Church|Solutions|Group|Holdings|Partners|",
        r"Associates|Logistics|Consulting|Industries|Enterprises|Bakery|Pharmacy|Hotel|Restaurant|Museum|Trust|Society|Association|",
        r"Systems|Technologies|Laboratories|Labs|Motors|Airlines|Insurance|Brothers|Company|Agency|Practice|Studio|Studios)\b",
    )
);
pattern!(
    KIND_BEFORE,
    concat!(
        r"\b(?:Universität|Hochschule|Praxis|Klinik|Klinikum|Krankenhaus|Stadtwerke|Volksbank|Sparkasse|Raiffeisenbank|Grundschule|",
        r"Gymnasium|Realschule|Gesamtschule|Kita|Kindergarten|Verein|Kanzlei|Apotheke|Bäckerei|Metzgerei|Autohaus|Hotel|Gasthof|",
        r"Restaurant|Spedition|Stiftung|Landratsamt|Amtsgericht|Bauunternehmen|Tischlerei|Universidad|Banco|Clínica|Colegio|Hospital|",
        r"Instituto|Fundación|Grupo|Transportes|Construcciones|Panadería|Talleres|Taller|Farmacia|Restaurante|Bufete|Despacho|",
        r"Asociación|Academia|Cooperativa|Editorial|Librería|Ferretería|Supermercados|Seguros|Inmobiliaria|Bodegas|Caja|Escuela|",
        r"Gestoría|Parroquia|Residencia) ",
        r"(?:(?:am|an der|im|der|zum|zur|St\.|Sankt|de la|de los|de las|del|de|la|los) )*(\p{Lu}[\p{L}'’-]+)",
        r"(?: (?:(?:de la|de los|del|de|y|am|an der|und) )?\p{Lu}[\p{L}'’-]+){0,4}",
    )
);
pattern!(
    KIND_JOINED,
    r"\b\p{Lu}[\p{L}]+(?:-\p{Lu}[\p{L}]+)*-(?:Krankenhaus|Klinik|Klinikum|Schule|Gymnasium|Stiftung|Universität|Hospital|Bank|Apotheke|Werke|Gruppe)\b"
);

/// Finds organisations by the form of their names.
pub(super) fn find(text: &str, found: &mut Vec<Found>) {
    for m in LEGAL_FORM.find_iter(text) {
        add(text, m.range(), true, found);
    }
    for m in KIND_AFTER.find_iter(text) {
        add(text, m.range(), false, found);
    }
    for groups in KIND_BEFORE.captures_iter(text) {
        let range = groups.get_match().range();
        let mut words = groups.get_match().as_str().split_whitespace().skip(1).peekable();
        let of = words.peek().is_some_and(|word| word.starts_with(char::is_lowercase));
        let name = |word: &str| {
            word.starts_with(char::is_uppercase) && (of && !lists().is_public(word) || is_own(word))
        };
        if words.any(name) {
            push(found, EntityKind::Org, range);
        }
    }
    for m in KIND_JOINED.find_iter(text) {
        let name = m.as_str().rsplit_once('-').map_or("", |(name, _)| name);
        let own = |part: &str| part.contains(char::is_lowercase) && is_own(part);
        if name.split('-').any(own) {
            push_as(found, Certainty::Likely, EntityKind::Org, m.range());
        }
    }
}

fn bare(word: &str) -> &str {
    word.trim_end_matches([',', '.', ':'])
}

/// Checks for a word that may be somebody's own name.
fn is_own(word: &str) -> bool {
    let word = bare(word);
    let is_word = lists().is_common(word, true) || lists().in_dictionary(word);
    let known = lists().is_public(word) || is_word && !lists().is_surname(word);
    word.starts_with(char::is_uppercase) && word.chars().nth(1).is_some() && !known
}

/// Adds an organisation without the words of the sentence at its start, if a name is left.
fn add(text: &str, mut range: Range<usize>, legal: bool, found: &mut Vec<Found>) {
    let starts: Vec<(usize, &str)> = {
        let own = &text[range.clone()];
        own.split_whitespace().map(|word| (word.as_ptr() as usize - own.as_ptr() as usize, word)).collect()
    };
    let base = range.start;
    let mut first = 0;
    // Function words and roles at the start of a sentence are not a part of the name.
    while first + 1 < starts.len() {
        let word = bare(starts[first].1);
        let small = word.starts_with(char::is_lowercase);
        let lead = has(&cues::ARTICLES, word)
            || has(&cues::FIRM_LABELS, word)
            || has(&cues::ROLES, word)
            || has(&cues::LEADS, word);
        if !small && !lead {
            break;
        }
        first += 1;
    }
    let name = &starts[first..starts.len().saturating_sub(1)];
    let ampersand = name.iter().any(|(_, word)| *word == "&") && name.len() >= 2;
    if name.iter().any(|(_, word)| is_own(word)) || ampersand || legal && !name.is_empty() {
        range.start = base + starts[first].0;
        let certainty = if legal { Certainty::Shown } else { Certainty::Likely };
        push_as(found, certainty, EntityKind::Org, range);
    }
}
