//! Choices in small repositories, and in listings of popular ones as a hub gave them.

use super::*;

fn listed(path: &str, bytes: u64) -> Listed {
    Listed { path: path.into(), bytes, sha256: None }
}

fn repository() -> Vec<Variant> {
    variants(vec![
        listed("README.md", 10),
        listed("small-Q8_0.gguf", 800_000_000),
        listed("small-Q4_K_M.gguf", 400_000_000),
        listed("small-Q4_K_S.gguf", 380_000_000),
        listed("small-IQ4_XS.gguf", 370_000_000),
        listed("mmproj-small-f16.gguf", 5),
        listed("F16/small-F16-00002-of-00002.gguf", 700_000_000),
        listed("F16/small-F16-00001-of-00002.gguf", 900_000_000),
        listed("BF16/small-BF16-00001-of-00002.gguf", 900_000_000),
    ])
}

/// Chooses of a repository that has these files, each of some bytes.
fn of_files(paths: &[&str], which: Option<&str>) -> Result<String, String> {
    let files = paths.iter().zip(1..).map(|(path, at)| listed(path, 1_000_000_000 + at)).collect();
    choose(&variants(files), which, "hf:a/b").map(|choice| choice.variant.path)
}

#[track_caller]
fn check(which: Option<&str>, want: &str) {
    let found = choose(&repository(), which, "hf:a/b").map(|choice| choice.variant.path);
    assert_eq!(found.as_deref(), Ok(want), "{which:?}");
}

#[test]
fn a_model_is_chosen_by_quantization_or_file() {
    check(Some("Q4_K_M"), "small-Q4_K_M.gguf");
    check(Some("q4_k_m"), "small-Q4_K_M.gguf");
    check(Some("IQ4_XS"), "small-IQ4_XS.gguf");
    check(Some("small-Q8_0.gguf"), "small-Q8_0.gguf");
    check(Some("mmproj-small-f16.gguf"), "mmproj-small-f16.gguf");
    check(Some("F16"), "F16/small-F16.gguf");
    check(Some("small-F16-00001-of-00002.gguf"), "F16/small-F16.gguf");
    check(Some("F16/small-F16-00002-of-00002.gguf"), "F16/small-F16.gguf");
    let split = choose(&repository(), Some("F16"), "").unwrap().variant;
    assert_eq!(split.bytes(), 1_600_000_000);
    assert_eq!(split.files[0].path, "F16/small-F16-00001-of-00002.gguf", "parts are in order");
}

#[test]
fn one_is_taken_and_said_if_none_is_named() {
    let choice = choose(&repository(), None, "hf:a/b").unwrap();
    assert_eq!(choice.variant.path, "small-Q4_K_M.gguf");
    assert_eq!(
        choice.note.as_deref(),
        Some(
            "`hf:a/b` has 5 models of 370.0 MB to 1.60 GB; this is small-Q4_K_M.gguf. Another one: hf:a/b:Q8_0"
        )
    );
    assert_eq!(choose(&repository(), Some("Q4_K_M"), "hf:a/b").unwrap().note, None, "it was named");
    let one = variants(vec![listed("x.gguf", 1)]);
    assert_eq!(choose(&one, None, "").unwrap(), Choice { variant: one[0].clone(), note: None });
}

#[test]
fn what_is_not_clear_is_listed_with_sizes() {
    for unknown in ["Q4_K", "4_K_M", "Q5_K_M", "other.gguf", "XS-"] {
        let said = choose(&repository(), Some(unknown), "hf:a/b").unwrap_err();
        assert!(said.contains(&format!("has no model `{unknown}`; it has:")), "{unknown}: {said}");
        assert!(said.contains("400.0 MB  small-Q4_K_M.gguf\n"), "{said}");
        assert!(said.contains("1.60 GB  F16/small-F16.gguf in 2 files"), "{said}");
        assert!(!said.contains("mmproj") && !said.contains("BF16"), "{said}");
    }
    let none = of_files(&["config.json"], None).unwrap_err();
    assert!(none.contains("holds no GGUF model"), "{none}");
    let none = of_files(&["mmproj-F16.gguf", "imatrix.gguf"], None).unwrap_err();
    assert!(none.contains("holds no GGUF model"), "{none}");
    // Different models of one repository are never guessed.
    let several = ["one-Q4_K_M.gguf", "two-Q4_K_M.gguf"];
    for which in [None, Some("Q4_K_M")] {
        let said = of_files(&several, which).unwrap_err();
        assert!(said.contains("like hf:a/b:one-Q4_K_M.gguf"), "{said}");
    }
    let said = of_files(&["one-Q4_K_M.gguf", "two-Q8_0.gguf"], None).unwrap_err();
    assert!(said.contains("has several models"), "{said}");
}

/// `unsloth/Qwen3.8-27B-GGUF` as a hub listed it on 25 September 2026: its drafter, importance matrix and
/// projectors come before and between the models.
const UNSLOTH_QWEN: &[&str] = &[
    "BF16/Qwen3.8-27B-BF16-00001-of-00002.gguf",
    "BF16/Qwen3.8-27B-BF16-00002-of-00002.gguf",
    "MTP/mtp-Qwen3.8-27B-Q4_0.gguf",
    "Qwen3.8-27B-Q4_0.gguf",
    "Qwen3.8-27B-Q4_1.gguf",
    "Qwen3.8-27B-Q8_0.gguf",
    "Qwen3.8-27B-UD-IQ1_M.gguf",
    "Qwen3.8-27B-UD-IQ2_XXS.gguf",
    "Qwen3.8-27B-UD-IQ4_XS.gguf",
    "Qwen3.8-27B-UD-Q2_K_XL.gguf",
    "Qwen3.8-27B-UD-Q4_K_M.gguf",
    "Qwen3.8-27B-UD-Q4_K_S.gguf",
    "Qwen3.8-27B-UD-Q4_K_XL.gguf",
    "Qwen3.8-27B-UD-Q6_K.gguf",
    "Qwen3.8-27B-UD-Q8_K_XL.gguf",
    "imatrix_unsloth.gguf",
    "mmproj-BF16.gguf",
    "mmproj-F16.gguf",
];

/// `unsloth/gemma-4-12b-it-GGUF`, in part.
const UNSLOTH_GEMMA: &[&str] = &[
    "MTP/mtp-gemma-4-12b-it-Q8_0.gguf",
    "MTP/gemma-4-12b-it-Q8_0-MTP.gguf",
    "gemma-4-12b-it-IQ4_XS.gguf",
    "gemma-4-12b-it-Q4_K_M.gguf",
    "gemma-4-12b-it-Q8_0.gguf",
    "gemma-4-12b-it-UD-Q4_K_M.gguf",
    "gemma-4-12b-it-UD-Q4_K_XL.gguf",
    "imatrix_unsloth.gguf_file",
    "mmproj-F32.gguf",
    "mtp-gemma-4-12b-it.gguf",
];

/// `ggml-org/gpt-oss-20b-GGUF`.
const GGML_GPT_OSS: &[&str] =
    &["eagle3-gpt-oss-20b-BF16.gguf", "eagle3-gpt-oss-20b-Q8_0.gguf", "gpt-oss-20b-MXFP4.gguf"];

/// `bartowski/moonshotai_Kimi-Linear-48B-A3B-Instruct-GGUF`, in part.
const BARTOWSKI_KIMI: &[&str] = &[
    "moonshotai_Kimi-Linear-48B-A3B-Instruct-IQ1_M.gguf",
    "moonshotai_Kimi-Linear-48B-A3B-Instruct-IQ4_NL.gguf",
    "moonshotai_Kimi-Linear-48B-A3B-Instruct-Q2_K_L.gguf",
    "moonshotai_Kimi-Linear-48B-A3B-Instruct-Q4_0.gguf",
    "moonshotai_Kimi-Linear-48B-A3B-Instruct-Q4_K_L.gguf",
    "moonshotai_Kimi-Linear-48B-A3B-Instruct-Q4_K_M.gguf",
    "moonshotai_Kimi-Linear-48B-A3B-Instruct-Q4_K_S.gguf",
    "moonshotai_Kimi-Linear-48B-A3B-Instruct-Q6_K.gguf",
    "moonshotai_Kimi-Linear-48B-A3B-Instruct-Q8_0/moonshotai_Kimi-Linear-48B-A3B-Instruct-Q8_0-00001-of-00002.gguf",
    "moonshotai_Kimi-Linear-48B-A3B-Instruct-Q8_0/moonshotai_Kimi-Linear-48B-A3B-Instruct-Q8_0-00002-of-00002.gguf",
    "moonshotai_Kimi-Linear-48B-A3B-Instruct-imatrix.gguf",
];

/// `lmstudio-community/gemma-3-4b-it-GGUF`.
const LM_STUDIO_GEMMA: &[&str] = &[
    "gemma-3-4b-it-Q3_K_L.gguf",
    "gemma-3-4b-it-Q4_K_M.gguf",
    "gemma-3-4b-it-Q6_K.gguf",
    "gemma-3-4b-it-Q8_0.gguf",
    "mmproj-model-f16.gguf",
];

/// A repository in the way of `mradermacher`, whose projectors have the model's name first.
const MRADERMACHER: &[&str] = &[
    "Qwen2.5-VL-7B-Instruct.IQ4_XS.gguf",
    "Qwen2.5-VL-7B-Instruct.Q4_K_M.gguf",
    "Qwen2.5-VL-7B-Instruct.Q8_0.gguf",
    "Qwen2.5-VL-7B-Instruct.f16.gguf",
    "Qwen2.5-VL-7B-Instruct.imatrix.gguf",
    "Qwen2.5-VL-7B-Instruct.mmproj-Q8_0.gguf",
    "Qwen2.5-VL-7B-Instruct.mmproj-fp16.gguf",
];

/// `Qwen/Qwen2.5-1.5B-Instruct-GGUF`, in part.
const QWEN: &[&str] = &[
    "qwen2.5-1.5b-instruct-fp16.gguf",
    "qwen2.5-1.5b-instruct-q4_0.gguf",
    "qwen2.5-1.5b-instruct-q4_k_m.gguf",
    "qwen2.5-1.5b-instruct-q8_0.gguf",
];

#[test]
fn popular_repositories_give_the_model_that_people_take() {
    for (files, which, want) in [
        (UNSLOTH_QWEN, None, "Qwen3.8-27B-UD-Q4_K_M.gguf"),
        (UNSLOTH_QWEN, Some("Q4_0"), "Qwen3.8-27B-Q4_0.gguf"),
        (UNSLOTH_QWEN, Some("BF16"), "BF16/Qwen3.8-27B-BF16.gguf"),
        (UNSLOTH_QWEN, Some("UD-Q4_K_XL"), "Qwen3.8-27B-UD-Q4_K_XL.gguf"),
        (UNSLOTH_QWEN, Some("mtp-Qwen3.8-27B-Q4_0.gguf"), "MTP/mtp-Qwen3.8-27B-Q4_0.gguf"),
        (UNSLOTH_GEMMA, None, "gemma-4-12b-it-Q4_K_M.gguf"),
        (UNSLOTH_GEMMA, Some("Q8_0"), "gemma-4-12b-it-Q8_0.gguf"),
        (GGML_GPT_OSS, None, "gpt-oss-20b-MXFP4.gguf"),
        (BARTOWSKI_KIMI, None, "moonshotai_Kimi-Linear-48B-A3B-Instruct-Q4_K_M.gguf"),
        (LM_STUDIO_GEMMA, None, "gemma-3-4b-it-Q4_K_M.gguf"),
        (MRADERMACHER, None, "Qwen2.5-VL-7B-Instruct.Q4_K_M.gguf"),
        (MRADERMACHER, Some("Q8_0"), "Qwen2.5-VL-7B-Instruct.Q8_0.gguf"),
        (QWEN, None, "qwen2.5-1.5b-instruct-q4_k_m.gguf"),
    ] {
        assert_eq!(of_files(files, which).as_deref(), Ok(want), "{which:?}");
    }
    // A drafter in the only file of a quantization is not that model.
    let said = of_files(GGML_GPT_OSS, Some("Q8_0")).unwrap_err();
    assert!(said.contains("gpt-oss-20b-MXFP4.gguf") && !said.contains("eagle3"), "{said}");
}

#[test]
fn helpers_never_compete_and_families_named_like_them_do() {
    let model = "Some-7B-Q4_K_M.gguf";
    for helper in [
        "mmproj-F16.gguf",
        "Some-7B-mmproj-f16.gguf",
        "Some-7B_mmproj.gguf",
        "imatrix.gguf",
        "Some-7B.imatrix.gguf",
        "ggml-vocab-some.gguf",
        "mtp-Some-7B.gguf",
        "MTP/Some-7B-Q4_K_M.gguf",
        "Some-7B-assistant-Q4_K_M.gguf",
        "Some-0.5B-draft-Q4_K_M.gguf",
        "Some-7B-Drafter.Q4_K_M.gguf",
        "eagle3-Some-7B-Q4_K_M.gguf",
        "dflash-Some-7B-BF16.gguf",
        "Some-7B-LoRA-f16.gguf",
    ] {
        assert_eq!(of_files(&[helper, model], None).as_deref(), Ok(model), "{helper}");
        assert_eq!(of_files(&[helper, model], Some("Q4_K_M")).as_deref(), Ok(model), "{helper}");
    }
    for family in [
        &["Qwen3.6-27B-MTP-Q4_K_M.gguf", "Qwen3.6-27B-MTP-Q8_0.gguf", "mmproj-F16.gguf"][..],
        &["Eagle2-9B-Q4_K_M.gguf"],
        &["My-Assistant-3B-Q4_K_M.gguf", "My-Assistant-3B-Q8_0.gguf"],
        &["Qwen3-Imatrix-Tuned-Q4_K_M.gguf"],
        &["Vocabulary-Tutor-1B-Q4_K_M.gguf"],
        &["qwen3-0.6B-draft-Q4_K_M.gguf", "qwen3-0.6B-draft-Q8_0.gguf"],
    ] {
        assert_eq!(of_files(family, None).as_deref(), Ok(family[0]));
    }
}

#[test]
fn parts_of_sets_are_known_by_their_names() {
    for (name, want) in [
        ("a-00001-of-00003.gguf", Some(("a", 1, 3))),
        ("d/a-b-00003-of-00003.gguf", Some(("d/a-b", 3, 3))),
        ("a-00004-of-00003.gguf", None),
        ("a-00000-of-00003.gguf", None),
        ("a-1-of-3.gguf", None),
        ("a-00001-of-00001.gguf", None),
        ("a.gguf", None),
    ] {
        assert_eq!(split_name(name), want, "{name}");
    }
}
