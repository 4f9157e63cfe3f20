//! The output file: its metadata, its progress, and that it is complete or absent.

use std::ops::ControlFlow;
#[cfg(target_os = "linux")]
use std::process::Command;

use baton_engine::gguf::Gguf;
use baton_import::{ImportError, ImportOptions, Quantization, import};
use serde_json::json;

use crate::folder::{Folder, LAYERS, VOCAB};

fn options(folder: &Folder) -> ImportOptions {
    ImportOptions {
        dir: folder.dir.path().to_owned(),
        out: folder.path("out.gguf"),
        replace: false,
        quantization: Quantization::Q8_0,
        adapters: Vec::new(),
    }
}

/// Returns the files of the folder that have `gguf` in their names.
fn made(folder: &Folder) -> Vec<String> {
    let names = std::fs::read_dir(folder.dir.path()).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.contains("gguf")).collect()
}

#[test]
fn metadata_is_as_other_programs_write_it() {
    let mut folder = Folder::new("LlamaForCausalLM");
    folder.config["_name_or_path"] = "someone/Tiny-Llama".into();
    folder.config["sliding_window"] = 77.into();
    folder.write_json("generation_config.json", &json!({"eos_token_id": [259, 258]}));
    folder.write();
    let summary = folder.import(Quantization::Q8_0).unwrap();
    let gguf = Gguf::open(folder.path("out.gguf")).unwrap();
    let m = gguf.metadata();
    let number = |key: &str| m.u32(key).unwrap();
    assert_eq!(m.str("general.architecture").unwrap(), "llama");
    assert_eq!(m.str("general.name").unwrap(), "Tiny-Llama");
    assert_eq!(number("general.file_type"), 7);
    for (key, want) in [
        ("llama.block_count", LAYERS as u32),
        ("llama.context_length", 512),
        ("llama.embedding_length", 64),
        ("llama.feed_forward_length", 96),
        ("llama.attention.head_count", 4),
        ("llama.attention.head_count_kv", 2),
        ("llama.attention.key_length", 16),
        ("llama.rope.dimension_count", 16),
        ("llama.vocab_size", VOCAB as u32),
        ("tokenizer.ggml.bos_token_id", 258),
        ("tokenizer.ggml.eos_token_id", 259),
        ("tokenizer.ggml.eot_token_id", 258),
    ] {
        assert_eq!(number(key), want, "{key}");
    }
    assert_eq!(m.f32("llama.rope.freq_base").unwrap(), 10_000.0);
    assert!(!m.contains("llama.attention.sliding_window"), "Llama does not read the key");
    assert_eq!(m.str("tokenizer.ggml.model").unwrap(), "gpt2");
    assert_eq!(m.str("tokenizer.ggml.pre").unwrap(), "gpt-2");
    assert_eq!(m.str_array("tokenizer.ggml.merges").unwrap(), ["h e", "Ġ w"]);
    let types = m.i32_array("tokenizer.ggml.token_type").unwrap();
    assert_eq!((types.len(), types[97], types[258], types[260]), (VOCAB, 1, 3, 5));
    assert!(!m.bool("tokenizer.ggml.add_bos_token").unwrap());
    assert!(m.str("tokenizer.chat_template").unwrap().contains("m.content"));
    assert_eq!(gguf.tensors().count(), summary.n_tensors);
    assert_eq!(gguf.file_len(), summary.file_bytes);
    assert_eq!(summary.vocab_len, VOCAB);
    let n_weights: u64 = folder.tensors.values().map(|tensor| tensor.elem_count() as u64).sum();
    assert_eq!(summary.n_weights, n_weights);
    assert_eq!(gguf.tensor("blk.1.attn_q.weight").unwrap().dims, [64, 64]);
}

#[test]
fn a_window_is_written_where_the_class_has_it() {
    for (class, used, want) in [
        ("MistralForCausalLM", None, Some(77)),
        ("Qwen2ForCausalLM", Some(false), None),
        ("Qwen2ForCausalLM", Some(true), Some(77)),
    ] {
        let mut folder = Folder::new(class);
        folder.config["sliding_window"] = 77.into();
        folder.config["use_sliding_window"] = used.into();
        folder.write();
        folder.import(Quantization::F32).unwrap();
        let window = folder.model().config().window;
        assert_eq!(window.map(|window| window.tokens), want, "{class} {used:?}");
    }
}

#[test]
fn progress_is_told_and_can_stop_the_import() {
    let folder = Folder::new("LlamaForCausalLM");
    folder.write();
    let options = options(&folder);
    let mut seen = Vec::new();
    let summary = import(&options, &mut |progress| {
        seen.push((progress.tensor.to_owned(), progress.bytes_done, progress.bytes_total));
        ControlFlow::Continue(())
    });
    let summary = summary.unwrap();
    assert_eq!(seen.len(), summary.n_tensors, "each tensor of this model is one band");
    assert_eq!(seen[0], ("token_embd.weight".to_owned(), 0, seen[0].2));
    assert!(seen.windows(2).all(|pair| pair[0].1 < pair[1].1 && pair[1].1 < pair[1].2), "{seen:?}");
    assert_eq!(made(&folder), ["out.gguf"]);

    assert!(matches!(
        import(&options, &mut |_| ControlFlow::Continue(())),
        Err(ImportError::OutExists { .. })
    ));
    std::fs::remove_file(&options.out).unwrap();
    for stop_at in [0, 1, seen.len() - 1] {
        let mut calls = 0;
        let result = import(&options, &mut |_| {
            calls += 1;
            if calls > stop_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(matches!(result, Err(ImportError::Cancelled)), "{result:?}");
        assert_eq!(made(&folder), [""; 0], "stopped at {stop_at}");
    }
}

#[test]
fn equal_folders_make_equal_files() {
    let folder = Folder::wide("LlamaForCausalLM");
    folder.write();
    let bytes = || {
        folder.import(Quantization::Q4_K_M).unwrap();
        std::fs::read(folder.path("out.gguf")).unwrap()
    };
    assert!(bytes() == bytes());
}

#[test]
fn a_tokenizer_that_its_own_library_refuses_is_known_before_weights_are_computed() {
    let mut folder = Folder::new("LlamaForCausalLM");
    folder.tokenizer["decoder"] = json!({"type": "NoSuchDecoder"});
    folder.write();
    let result = import(&options(&folder), &mut |progress| panic!("weights are computed: {progress:?}"));
    assert!(matches!(result, Err(ImportError::ReadTokenizer(_))), "{result:?}");
    assert_eq!(made(&folder), [""; 0]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_known_before_weights_are_computed() {
    let folder = Folder::wide("LlamaForCausalLM");
    folder.write();
    let place = folder.path("small");
    std::fs::create_dir(&place).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "none"]).arg(&place).output();
    match mounted {
        Ok(output) if output.status.success() => {}
        other => {
            println!("skipped: import: a full disk: no small file system can be mounted: {other:?}");
            return;
        }
    }
    let options = ImportOptions { out: place.join("out.gguf"), ..options(&folder) };
    let mut calls = 0;
    let result = import(&options, &mut |_| {
        calls += 1;
        ControlFlow::Continue(())
    });
    let left = std::fs::read_dir(&place).unwrap().count();
    assert!(Command::new("umount").arg("-l").arg(&place).status().unwrap().success());
    assert!(matches!(&result, Err(ImportError::NoRoom { bytes, .. }) if *bytes > 64 << 10), "{result:?}");
    assert_eq!((calls, left), (0, 0), "weights computed, files left");
}
