//! Tokenizers against llama.cpp's own test vectors, which belong to the user: `BATON_TOKENIZER_VECTORS` names
//! their folder, the folder `models` of a checkout of llama.cpp. They are not part of this project.
//!
//! Every type of vocabulary in the folder is either equal, text for text, or refused by a message that names
//! what this program cannot express. The list is printed.

use std::path::Path;

use baton_engine::tokenizer::check_vectors;

#[test]
fn every_type_is_equal_or_refused_by_name() {
    let Some(folder) = std::env::var_os("BATON_TOKENIZER_VECTORS") else {
        println!("skipped: tokenizers: BATON_TOKENIZER_VECTORS names no folder of tokenizer vectors");
        return;
    };
    let reports = check_vectors(Path::new(&folder)).expect("read the vectors");
    assert!(
        !reports.is_empty(),
        "the folder has no vectors: files NAME.gguf, NAME.gguf.inp and NAME.gguf.out"
    );
    let mut wrong = Vec::new();
    for report in &reports {
        let name = report.name.trim_start_matches("ggml-vocab-").trim_end_matches(".gguf");
        match &report.refused {
            Some(err) => println!("ok {name}: refused, {err}"),
            None if report.failures.is_empty() => println!("ok {name}: {} texts equal", report.cases),
            None => {
                println!("{name}: {} of {} texts differ", report.failures.len(), report.cases);
                wrong.extend(report.failures.iter().map(|failure| (name, failure)));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(reports.iter().any(|report| report.cases > 0), "at least one type was compared");
}
