//! Tests of names: people, places, organisations, and the user's own list.

use super::*;

#[track_caller]
fn redacted(texts: &[&str]) -> Vec<String> {
    let redacted = Redactor::default().redact_all(texts).unwrap();
    redacted.iter().map(|text| text.as_str().to_owned()).collect()
}

#[track_caller]
fn check(text: &str, want: &str) {
    assert_eq!(redacted(&[text]), [want], "{text:?}");
}

#[track_caller]
fn stays(text: &str) {
    check(text, text);
}

#[test]
fn people_are_found_by_lists_titles_and_roles() {
    check("Dear Dr. Keller, thanks.", "Dear Dr. [PERSON_1], thanks.");
    check("My neighbour Zephora complained.", "My neighbour [PERSON_1] complained.");
    check("Yesterday Olivia Turner called.", "Yesterday [PERSON_1] called.");
    check("Frau Rübsamenthal kommt aus der Klinik.", "Frau [PERSON_1] kommt aus der Klinik.");
    check("Un saludo,\nBeatriz Ortega", "Un saludo,\n[PERSON_1]");
    check("尊敬的郑女士，您好！", "尊敬的[PERSON_1]女士，您好！");
    check("我的同事王国强说他不来。", "我的同事[PERSON_1]说他不来。");
    check("我的同事陳國強說他不來。", "我的同事[PERSON_1]說他不來。");
    check("Attendees: Chloe Watson, George Turner", "Attendees: [PERSON_1], [PERSON_2]");
}

#[test]
fn places_and_organisations_are_found() {
    check("Send it to 18 Beech Avenue.", "Send it to [PLACE_1].");
    check("Ich wohne in der Gartenstraße 5.", "Ich wohne in der [PLACE_1].");
    check("Vivo en la Calle del Carmen 18.", "Vivo en la [PLACE_1].");
    check("我的地址是建设路15号2栋301室。", "我的地址是[PLACE_1]。");
    check("She grew up in Kettlewell.", "She grew up in [PLACE_1].");
    check("24306 Plön", "[PLACE_1]");
    check("Der Vertrag mit Elektro Süd GmbH endet.", "Der Vertrag mit [ORG_1] endet.");
    check("The offer of Fernhill Roofing Ltd is fair.", "The offer of [ORG_1] is fair.");
    check("我在宁波晨光电子有限公司工作。", "我在[ORG_1]工作。");
}

#[test]
fn common_words_public_names_and_code_stay() {
    for text in [
        "Mark the boxes, then Will may rest.",
        "May is warm, and Rose is a colour.",
        "Paris is the capital of France, Berlin of Germany.",
        "Der Stein fiel in den Bach, und die Sonne schien.",
        "El sol sale y la luna se esconde.",
        "王子和公主住在城堡里，高兴得很。",
        "import Anna from './anna'; class Paris extends City {}",
        "let markStein = new MarkStein(anna_keller);",
        "| Item | Price |\n|---|---|\n| Green Tea | 3.20 |",
        "{\"status\": \"Not Found\", \"code\": 404}",
        "I live in Berlin and speak German on Mondays.",
        "Sehr geehrte Damen und Herren,",
        "有限公司和大学是机构。",
    ] {
        stays(text);
    }
}

#[test]
fn a_person_who_was_introduced_is_known_by_surname_or_given_name_later() {
    let later =
        redacted(&["Dr. Anna Keller is my doctor.", "Is Keller good? Ask Anna.", "Der Keller ist feucht."]);
    assert_eq!(later[0], "Dr. [PERSON_1] is my doctor.");
    assert_eq!(later[1], "Is [PERSON_2] good? Ask [PERSON_3].");
    assert_eq!(later[2], "Der Keller ist feucht.");
    let case = redacted(&["Ms. Rose Stone called.", "A stone fell on the rose. Roses grow."]);
    assert_eq!(case[1], "A stone fell on the rose. Roses grow.");
}

#[test]
fn a_name_has_one_placeholder_in_a_conversation() {
    let memory = Memory::default();
    let mut first = Redactor::default().with_memory(memory.clone());
    first.redact("Please write to Olivia Turner.").unwrap();
    let mut second = Redactor::default().with_memory(memory);
    let texts = ["then Olivia Turner and turner, Olivia Turner", "Olivia Turner"];
    let second = second.redact_all(&texts).unwrap();
    assert_eq!(second[0].as_str(), "then [PERSON_1] and turner, [PERSON_1]");
    assert_eq!(second[1].as_str(), "[PERSON_1]");
}

#[test]
fn stronger_kinds_win_over_names() {
    check("Mail Olivia.Turner@example.com", "Mail [EMAIL_1]");
    check("Dear Ms Watson <watson@example.com>,", "Dear Ms [PERSON_1] <[EMAIL_1]>,");
}

#[test]
fn the_users_list_is_always_replaced_and_the_off_switch_leaves_it_and_the_patterns() {
    let names = |detected| PrivateNames::new(detected, &["project bluebird", "飞鸟", "x"]);
    let text = "Project Bluebird (飞鸟计划) of Olivia Turner, a@example.com, xylophone x";
    let redact = |detected| {
        let mut redactor = Redactor::default().with_names(names(detected));
        let redacted = redactor.redact(text).unwrap();
        assert_eq!(restore_all(&redactor, redacted.as_str()), text);
        redacted.as_str().to_owned()
    };
    assert_eq!(redact(true), "[NAME_1] ([NAME_2]计划) of [PERSON_1], [EMAIL_1], xylophone x");
    assert_eq!(redact(false), "[NAME_1] ([NAME_2]计划) of Olivia Turner, [EMAIL_1], xylophone x");
    let none: [&str; 0] = [];
    let off = Redactor::default().with_names(PrivateNames::new(false, &none)).redact("Dr. Anna Keller");
    assert_eq!(off.unwrap().as_str(), "Dr. Anna Keller");
}

#[test]
fn names_of_scenes_and_models_are_not_people() {
    assert!(PublicName::new("scene", "Anna Keller").is_ok());
    assert!(PublicName::new("scene", "anna@example.com").is_err());
}

/// Makes texts of names, cues and marks in any order.
fn text_of_names() -> impl Strategy<Value = String> {
    const WORDS: &[&str] = &[
        "Anna",
        "Keller",
        "Dr.",
        "Frau",
        "Mark",
        "von",
        "der",
        "Osei-Tutu",
        "O'Hara",
        "J.",
        "GmbH",
        "& Co.",
        "Calle",
        "12",
        "Hauptstraße",
        "24306",
        "Plön",
        "in",
        "lives",
        "aus",
        "said",
        ":",
        "\n",
        "\\n",
        "\t",
        "|",
        "@",
        "王",
        "国强",
        "先生",
        "有限公司",
        "路",
        "88号",
        "，",
        "的",
        "陳",
        "·",
        "名",
        "\u{301}",
        "ａｎｎａ",
        "[PERSON_1]",
        "[NAME_1]",
        "İ",
        "ẞ",
        "%20",
    ];
    let piece = proptest::sample::select(WORDS).prop_map(str::to_owned);
    let gap = prop_oneof![Just(" "), Just(""), Just(", ")];
    proptest::collection::vec((piece, gap), 0..24)
        .prop_map(|pieces| pieces.into_iter().map(|(piece, gap)| piece + gap).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn restoring_gives_the_text_with_names_back(text in text_of_names(), other in text_of_names()) {
        let names = PrivateNames::new(true, &["anna", "国强"]);
        let mut redactor = Redactor::default().with_names(names);
        let both = redactor.redact_all(&[&text, &other]).unwrap();
        prop_assert_eq!(&restore(&redactor, both[0].as_str(), 1), &text);
        prop_assert_eq!(&restore_all(&redactor, both[1].as_str()), &other);
    }
}
