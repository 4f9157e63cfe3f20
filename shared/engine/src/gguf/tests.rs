//! Malformed files, round trips, and mutations of a valid file.

use proptest::prelude::*;

use super::*;
use baton_kernels_cpu::Format;

/// Builds a file field by field, so that each field can be wrong on its own.
#[derive(Default)]
struct Raw(Vec<u8>);

impl Raw {
    fn header(version: u32, tensors: u64, metadata: u64) -> Raw {
        Raw(b"GGUF".to_vec()).u32(version).u64(tensors).u64(metadata)
    }
    fn bytes(mut self, bytes: &[u8]) -> Raw {
        self.0.extend(bytes);
        self
    }
    fn u32(self, v: u32) -> Raw {
        self.bytes(&v.to_le_bytes())
    }
    fn u64(self, v: u64) -> Raw {
        self.bytes(&v.to_le_bytes())
    }
    fn str(self, s: &str) -> Raw {
        self.u64(s.len() as u64).bytes(s.as_bytes())
    }
    /// Adds a directory entry.
    fn tensor(self, name: &str, dims: &[u64], ty: u32, offset: u64) -> Raw {
        let raw = self.str(name).u32(dims.len() as u32);
        dims.iter().fold(raw, |raw, &d| raw.u64(d)).u32(ty).u64(offset)
    }
    /// Pads to 32 bytes and adds `n` bytes of data.
    fn data(mut self, n: usize) -> Raw {
        let len = self.0.len().next_multiple_of(32) + n;
        self.0.resize(len, 7);
        self
    }
}

#[track_caller]
fn refused(raw: Raw, want: &str) {
    let err = Gguf::from_bytes(raw.0).expect_err(want);
    assert_eq!(err.to_string(), want);
}

fn sample() -> GgufWriter<'static> {
    let mut w = GgufWriter::new();
    w.set("general.architecture", "llama").set("llama.block_count", 2u32).set("big", 1u64 << 40);
    w.set("minus", -3i32).set("eps", 1e-5f32).set("flag", true).set("text", "añ\n");
    w.set("tokens", vec!["a", "", "é"]).set("types", vec![1i32, 3, -1]).set("scores", vec![0.5f32, -1.0]);
    w.set("counts", vec![1u32, 2]).set("none", Vec::<String>::new());
    w.tensor("a", &[4, 2], Format::F32, vec![1u8; 32]).unwrap();
    w.tensor("b", &[32], Format::Q8_0, vec![2u8; 34]).unwrap();
    w.tensor("c", &[3, 1, 2, 1], Format::F16, vec![3u8; 12]).unwrap();
    w
}

#[test]
fn what_is_written_is_read_back() {
    let bytes = sample().to_bytes().unwrap();
    assert_eq!(bytes, sample().to_bytes().unwrap(), "equal calls make equal files");
    let gguf = Gguf::from_bytes(bytes.clone()).unwrap();
    let m = gguf.metadata();
    assert_eq!(m.str("general.architecture").unwrap(), "llama");
    assert_eq!(m.u32("llama.block_count").unwrap(), 2);
    assert_eq!(m.u64("llama.block_count").unwrap(), 2);
    assert_eq!(m.u64("big").unwrap(), 1 << 40);
    assert_eq!(m.f32("eps").unwrap(), 1e-5);
    assert!(m.bool("flag").unwrap());
    assert_eq!(m.str("text").unwrap(), "añ\n");
    assert_eq!(m.str_array("tokens").unwrap(), ["a", "", "é"]);
    assert_eq!(m.i32_array("types").unwrap(), [1, 3, -1]);
    assert_eq!(m.f32_array("scores").unwrap(), [0.5, -1.0]);
    assert_eq!(m.u32_array("counts").unwrap(), [1, 2]);
    assert_eq!(m.str_array("none").unwrap(), Vec::<&str>::new());
    assert_eq!(m.opt_str("absent").unwrap(), None);
    assert_eq!(m.keys().count(), 12);
    assert!(m.contains("eps") && !m.contains("ep"));
    let a = gguf.tensor("a").unwrap();
    assert_eq!((a.name, a.dims, a.data), ("a", &[4u64, 2][..], &[1u8; 32][..]));
    assert_eq!(gguf.tensor("b").unwrap().data, [2u8; 34]);
    assert_eq!(gguf.tensor("c").unwrap().dims, [3, 1, 2, 1]);
    assert_eq!(gguf.tensors().map(TensorInfo::name).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(gguf.tensors().map(TensorInfo::data_len).sum::<usize>(), 32 + 34 + 12);
    assert_eq!(gguf.file_len(), bytes.len() as u64);
    assert!(gguf.find_tensor("d").unwrap().is_none() && !gguf.has_tensor("d") && gguf.path().is_none());
}

#[test]
fn a_mapped_file_reads_as_its_bytes_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    sample().write_file(&path).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    assert_eq!(gguf.parts().collect::<Vec<_>>(), [sample().to_bytes().unwrap()]);
    assert_eq!(gguf.path(), Some(path.as_path()));
    assert_eq!(gguf.tensor("b").unwrap().data, [2u8; 34]);
}

#[test]
fn version_two_is_read() {
    let mut bytes = sample().to_bytes().unwrap();
    bytes[4] = 2;
    assert_eq!(Gguf::from_bytes(bytes).unwrap().metadata().u32("llama.block_count").unwrap(), 2);
}

#[test]
fn getters_name_what_is_wrong() {
    let gguf = Gguf::from_bytes(sample().to_bytes().unwrap()).unwrap();
    let m = gguf.metadata();
    let text = |err: GgufError| err.to_string();
    assert_eq!(text(m.u32("x").unwrap_err()), "metadata key `x` is missing");
    assert_eq!(text(m.u32("text").unwrap_err()), "metadata key `text` is string, want u32");
    assert_eq!(text(m.u32("big").unwrap_err()), "metadata key `big` is 1099511627776, want a number in u32");
    assert_eq!(text(m.u32("minus").unwrap_err()), "metadata key `minus` is -3, want a number in u32");
    assert_eq!(text(m.f32("text").unwrap_err()), "metadata key `text` is string, want f32");
    assert_eq!(text(m.f32("big").unwrap_err()), "metadata key `big` is u64, want f32");
    assert_eq!(text(m.bool("big").unwrap_err()), "metadata key `big` is u64, want bool");
    assert_eq!(text(m.str("tokens").unwrap_err()), "metadata key `tokens` is array of strings, want string");
    assert_eq!(
        text(m.str_array("types").unwrap_err()),
        "metadata key `types` is array of integers, want array of strings"
    );
    assert_eq!(text(m.u32_array("types").unwrap_err()), "metadata key `types` is -1, want a number in u32");
    assert_eq!(
        text(m.u32_array("scores").unwrap_err()),
        "metadata key `scores` is array of floats, want array of u32"
    );
    assert_eq!(text(m.i32_array("text").unwrap_err()), "metadata key `text` is string, want array of i32");
    assert_eq!(
        text(m.f32_array("types").unwrap_err()),
        "metadata key `types` is array of integers, want array of f32"
    );
    assert_eq!(text(gguf.tensor("z").unwrap_err()), "tensor `z` is missing");
}

#[test]
fn malformed_headers_are_refused() {
    refused(Raw::default(), "magic at byte 0 needs 4 bytes, file has 0");
    refused(Raw(b"GG".to_vec()), "magic at byte 0 needs 4 bytes, file has 2");
    refused(Raw(b"ggml....".to_vec()), "this is not a GGUF file: it begins with \"ggml\"");
    refused(Raw(b"GGUF".to_vec()), "version at byte 4 needs 4 bytes, file has 4");
    refused(Raw::header(1, 0, 0), "version is 1, want 2 or 3");
    refused(Raw::header(4, 0, 0), "version is 4, want 2 or 3");
    refused(Raw::header(3u32.swap_bytes(), 0, 0), "file is big-endian; only little-endian files are read");
    refused(Raw(b"GGUF".to_vec()).u32(3).u64(0), "metadata count at byte 16 needs 8 bytes, file has 16");
    refused(
        Raw::header(3, 0, u64::MAX),
        "metadata count is 18446744073709551615, the 0 bytes left hold at most 0",
    );
    refused(
        Raw::header(3, u64::MAX, 0),
        "tensor count is 18446744073709551615, the 0 bytes left hold at most 0",
    );
    refused(Raw::header(3, 0, 3).data(25), "metadata count is 3, the 33 bytes left hold at most 2");
}

#[test]
fn malformed_metadata_is_refused() {
    let one = || Raw::header(3, 0, 1);
    refused(one().str("").data(64), "metadata key has 0 bytes, want 1 to 65535");
    refused(one().u64(70_000).data(64), "metadata key has 70000 bytes, want 1 to 65535");
    refused(one().u64(60_000).data(32), "metadata key at byte 32 needs 60000 bytes, file has 64");
    refused(one().u64(2).bytes(&[0xff, 0xfe]).data(32), "metadata key at byte 32 is not utf-8");
    refused(one().str("k").u32(13).data(32), "metadata key `k` has value type 13, want 0 to 12");
    refused(one().str("k").u32(7).bytes(&[2]), "metadata key `k` has boolean 2, want 0 or 1");
    refused(one().str("k").u32(10).u32(1), "metadata number at byte 37 needs 8 bytes, file has 41");
    let long = u64::MAX - 3;
    refused(
        one().str("k").u32(8).u64(long),
        "metadata string at byte 45 needs 18446744073709551612 bytes, file has 45",
    );
    refused(
        one().str("k").u32(9).u32(8).u64(long),
        "array length is 18446744073709551612, the 0 bytes left hold at most 0",
    );
    refused(
        one().str("k").u32(9).u32(10).u64(1 << 61).data(64),
        "array length is 2305843009213693952, the 79 bytes left hold at most 9",
    );
    refused(one().str("k").u32(9).u32(4).u64(2).u32(1), "array length is 2, the 4 bytes left hold at most 1");
    refused(
        one().str("k").u32(9).u32(8).u64(2).str("abcdefgh").u64(9),
        "array string at byte 73 needs 9 bytes, file has 73",
    );
    refused(
        one().str("k").u32(9).u32(7).u64(2).bytes(&[1, 9]),
        "metadata key `k` has boolean 9, want 0 or 1",
    );
    refused(one().str("k").u32(9).u32(99).u64(0), "metadata key `k` has value type 99, want 0 to 12");
    let nested = |depth| (0..depth).fold(one().str("k").u32(9), |raw, _| raw.u32(9).u64(1)).u32(0).u64(0);
    refused(nested(9), "metadata key `k` nests arrays more than 4 deep");
    assert!(Gguf::from_bytes(nested(3).0).unwrap().metadata().u32_array("k").is_err());
    let twice = Raw::header(3, 0, 2).str("k").u32(4).u32(1).str("k").u32(4).u32(2);
    refused(twice, "metadata key `k` is given twice");
    let long_key = "k".repeat(200);
    let shown = format!("metadata key `{}…` has value type 77, want 0 to 12", "k".repeat(80));
    refused(one().str(&long_key).u32(77).data(32), &shown);
}

#[test]
fn malformed_alignment_is_refused() {
    let with = |kind: u32, value: &[u8]| Raw::header(3, 0, 1).str("general.alignment").u32(kind).bytes(value);
    for bad in [0u32, 3, 48, 1 << 21, u32::MAX] {
        let want = format!("alignment is {bad}, want a power of two up to 1048576");
        refused(with(4, &bad.to_le_bytes()), &want);
    }
    refused(with(6, &1f32.to_le_bytes()), "metadata key `general.alignment` is f32, want u64");
    assert!(Gguf::from_bytes(with(4, &64u32.to_le_bytes()).0).is_ok());
}

#[test]
fn malformed_tensors_are_refused() {
    let one =
        |name: &str, dims: &[u64], ty, offset| Raw::header(3, 1, 0).tensor(name, dims, ty, offset).data(256);
    refused(one("", &[4], 0, 0), "tensor name has 0 bytes, want 1 to 64");
    refused(one(&"n".repeat(65), &[4], 0, 0), "tensor name has 65 bytes, want 1 to 64");
    refused(one("t", &[], 0, 0), "tensor `t` has dimensions [0], want 1 to 4 of at least 1");
    refused(one("t", &[1; 5], 0, 0), "tensor `t` has dimensions [5], want 1 to 4 of at least 1");
    refused(one("t", &[4, 0], 0, 0), "tensor `t` has dimensions [4, 0], want 1 to 4 of at least 1");
    refused(one("t", &[4], 4, 0), "tensor `t` has type number 4, which ggml does not define");
    refused(one("t", &[33], 8, 0), "tensor `t` has rows of 33 elements, Q8_0 wants a multiple of 32");
    refused(one("t", &[32], 12, 0), "tensor `t` has rows of 32 elements, Q4_K wants a multiple of 256");
    refused(one("t", &[4], 0, 4), "tensor `t` begins at offset 4, alignment is 32");
    refused(one("t", &[4], 0, 256), "tensor `t` ends at byte 336, file has 320");
    refused(one("t", &[65], 0, 0), "tensor `t` ends at byte 324, file has 320");
    refused(one("t", &[4], 0, u64::MAX - 31), "tensor `t` ends at byte 18446744073709551615, file has 320");
    let huge = 1u64 << 32;
    refused(
        one("t", &[huge; 3], 0, 0),
        &format!("tensor `t` with dimensions {:?} is larger than any file", [huge; 3]),
    );
    refused(
        one("t", &[1 << 62], 0, 0),
        "tensor `t` with dimensions [4611686018427387904] is larger than any file",
    );
    let two = |names: [&str; 2], offset| {
        Raw::header(3, 2, 0).tensor(names[0], &[9], 0, 0).tensor(names[1], &[4], 0, offset).data(256)
    };
    refused(two(["t", "t"], 64), "tensor `t` is given twice");
    refused(two(["t", "u"], 32), "tensors `t` and `u` overlap");
    assert!(Gguf::from_bytes(two(["t", "u"], 64).0).is_ok());
}

#[test]
fn types_without_kernels_are_named_when_asked_for() {
    for (number, name, cols, bytes) in [(9, "Q8_1", 32, 36), (15, "Q8_K", 256, 292), (26, "I32", 1, 4)] {
        let raw = Raw::header(3, 1, 0).tensor("t", &[cols], number, 0).data(bytes);
        let gguf = Gguf::from_bytes(raw.0).unwrap();
        let supported = "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ1_S, \
            IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ4_NL, IQ4_XS, TQ1_0, TQ2_0, MXFP4";
        let want = format!("tensor `t` has type {name}; supported are {supported}");
        assert_eq!(gguf.tensor("t").unwrap_err().to_string(), want);
        assert_eq!(gguf.tensors().next().unwrap().type_name(), name);
    }
}

#[test]
fn what_cannot_be_opened_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(Gguf::open(dir.path().join("absent")), Err(GgufError::Open { .. })));
    assert!(matches!(Gguf::open(dir.path()), Err(GgufError::NotAFile { .. })));
    let empty = dir.path().join("empty.gguf");
    std::fs::write(&empty, b"").unwrap();
    assert!(matches!(Gguf::open(&empty), Err(GgufError::Truncated { .. })));
}

#[test]
fn the_writer_refuses_what_the_reader_would() {
    let mut w = GgufWriter::new();
    let err = w.tensor("t", &[4], Format::F32, vec![0; 15]).unwrap_err().to_string();
    assert_eq!(err, "tensor `t` has 15 bytes, dimensions [4] in F32 want 16");
    for dims in [&[][..], &[0], &[1, 1, 1, 1, 1]] {
        let err = w.tensor("t", dims, Format::F32, vec![]).unwrap_err();
        assert!(matches!(err, GgufWriteError::BadDims { .. }), "{dims:?}");
    }
    assert!(matches!(w.tensor("t", &[31], Format::Q8_0, vec![]), Err(GgufWriteError::BadDims { .. })));
    assert!(matches!(w.tensor("", &[1], Format::F32, vec![0; 4]), Err(GgufWriteError::BadName { .. })));
    w.tensor("t", &[1], Format::F32, vec![0; 4]).unwrap();
    assert!(matches!(w.tensor("t", &[1], Format::F32, vec![0; 4]), Err(GgufWriteError::BadName { .. })));
    assert!(matches!(w.set("", 1u32).to_bytes(), Err(GgufWriteError::BadName { .. })));
}

#[test]
fn a_stream_makes_the_same_file_in_pieces() {
    let mut w = sample();
    w.tensor("d", &[40], Format::F32, (0..160).collect::<Vec<u8>>()).unwrap();
    let want = w.to_bytes().unwrap();
    let mut declared = GgufWriter::new();
    declared.metadata.clone_from(&w.metadata);
    let data = [vec![1u8; 32], vec![2; 34], vec![3; 12], (0..160).collect()];
    for (name, dims, format) in [
        ("a", &[4, 2][..], Format::F32),
        ("b", &[32], Format::Q8_0),
        ("c", &[3, 1, 2, 1], Format::F16),
        ("d", &[40], Format::F32),
    ] {
        declared.declare(name, dims, format).unwrap();
    }
    for piece_len in [1, 7, 32, 1000] {
        let mut stream = declared.begin(Vec::new()).unwrap();
        for (data, name) in data.iter().zip(["a", "b", "c", "d"]) {
            assert_eq!(stream.next_tensor(), Some(name));
            data.chunks(piece_len).for_each(|piece| stream.put(piece).unwrap());
        }
        assert_eq!(stream.next_tensor(), None);
        assert_eq!(stream.finish().unwrap(), want, "pieces of {piece_len}");
    }
}

#[test]
fn a_stream_refuses_too_much_and_too_little() {
    let mut w = GgufWriter::new();
    w.declare("t", &[2], Format::F32).unwrap().declare("u", &[1], Format::F32).unwrap();
    assert!(matches!(w.declare("t", &[1], Format::F32), Err(GgufWriteError::BadName { .. })));
    assert!(matches!(w.declare("v", &[31], Format::Q8_0), Err(GgufWriteError::BadDims { .. })));
    assert_eq!(w.to_bytes().unwrap_err().to_string(), "tensor `t` got 0 of its 8 bytes");
    let mut stream = w.begin(Vec::new()).unwrap();
    stream.put(&[0; 5]).unwrap();
    let err = stream.put(&[0; 4]).unwrap_err().to_string();
    assert_eq!(err, "4 bytes came for tensor `t`, which takes 3 more");
    stream.put(&[0; 3]).unwrap();
    stream.put(&[0; 4]).unwrap();
    let err = stream.put(&[0]).unwrap_err().to_string();
    assert_eq!(err, "1 bytes came for tensor ``, which takes 0 more");
    stream.put(&[]).unwrap();
    assert!(stream.finish().is_ok());
    let mut stream = w.begin(Vec::new()).unwrap();
    stream.put(&[0; 8]).unwrap();
    assert_eq!(stream.finish().unwrap_err().to_string(), "tensor `u` got 0 of its 4 bytes");
}

/// Reads everything; any result except a panic is right.
fn read_all(bytes: Vec<u8>) {
    let Ok(gguf) = Gguf::from_bytes(bytes) else { return };
    let m = gguf.metadata();
    for key in m.keys() {
        let _ = (m.opt_u32(key), m.opt_u64(key), m.opt_f32(key), m.opt_bool(key), m.opt_str(key));
        let _ = (m.opt_str_array(key), m.opt_u32_array(key), m.opt_i32_array(key), m.opt_f32_array(key));
    }
    for info in gguf.tensors() {
        if let Ok(view) = gguf.tensor(info.name()) {
            assert_eq!(view.data.len(), info.data_len());
        }
    }
}

#[test]
fn every_truncation_and_every_single_byte_is_survived() {
    let bytes = sample().to_bytes().unwrap();
    for len in 0..bytes.len() {
        read_all(bytes[..len].to_vec());
    }
    for at in 0..bytes.len() {
        for value in [0x00, 0x01, 0x7f, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] = value;
            read_all(changed);
        }
    }
    let head_len = bytes.len() - 3 * 64;
    assert!(Gguf::from_bytes(bytes[..head_len].to_vec()).is_err(), "a file without its data is refused");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_files_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12)) {
        let mut bytes = sample().to_bytes().unwrap();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        read_all(bytes);
    }

    #[test]
    fn mutated_words_never_panic(at in any::<prop::sample::Index>(), word in prop_oneof![any::<u64>(), 0u64..64, Just(u64::MAX)]) {
        let mut bytes = sample().to_bytes().unwrap();
        let at = at.index(bytes.len() - 8);
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        read_all(bytes);
    }

    #[test]
    fn any_bytes_never_panic(tail in prop::collection::vec(any::<u8>(), 0..200)) {
        read_all([b"GGUF\x03\0\0\0".as_slice(), &tail].concat());
    }
}
