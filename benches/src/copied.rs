//! Copies of model files with other weights: the same metadata and tensors, in other formats.

use anyhow::{Context as _, Result};
use baton_engine::gguf::{Gguf, GgufWriter, MetaValue, Metadata};
use baton_kernels_cpu::{Format, dequantize_row, quantize_row};

/// Returns a writer with the metadata of a file.
pub(crate) fn with_metadata(file: &Gguf) -> Result<GgufWriter<'static>> {
    let mut writer = GgufWriter::new();
    for key in file.metadata().keys().filter(|key| *key != "general.alignment") {
        writer.set(key, value(file.metadata(), key)?);
    }
    Ok(writer)
}

/// Returns the numbers of a tensor.
pub(crate) fn numbers_of(gguf: &Gguf, name: &str) -> Result<Vec<f32>> {
    let view = gguf.tensor(name)?;
    let mut numbers = vec![0.0; view.dims.iter().product::<u64>() as usize];
    dequantize_row(view.format, view.data, &mut numbers).context("decode a tensor")?;
    Ok(numbers)
}

/// Returns the file with its quantized tensors in another format. Rows that are no multiple of a super-block
/// get `narrow`, as llama.cpp does it.
pub(crate) fn requantized(file: &Gguf, format: Format, narrow: Format) -> Result<Vec<u8>> {
    let mut writer = with_metadata(file)?;
    for tensor in file.tensors() {
        let view = file.tensor(tensor.name())?;
        let dims = tensor.dims();
        if matches!(view.format, Format::F32) || dims.len() < 2 {
            writer.tensor(tensor.name(), dims, view.format, view.data.to_vec())?;
            continue;
        }
        let row = dims[0] as usize;
        let to = if row.is_multiple_of(format.block_len()) { format } else { narrow };
        let mut bytes = Vec::new();
        for numbers in numbers_of(file, tensor.name())?.chunks_exact(row) {
            quantize_row(to, numbers, &mut bytes).context("encode a row")?;
        }
        writer.tensor(tensor.name(), dims, to, bytes)?;
    }
    Ok(writer.to_bytes()?)
}

/// Returns the value of a key that is there, in the first form that fits.
fn value(metadata: Metadata<'_>, key: &str) -> Result<MetaValue> {
    macro_rules! first_of {
        ($($getter:ident),*) => {
            $(if let Ok(Some(value)) = metadata.$getter(key) { return Ok(value.into()); })*
        };
    }
    if metadata.is_array(key) {
        first_of!(opt_str_array, opt_u32_array, opt_i32_array, opt_f32_array, opt_bool_array);
    } else {
        first_of!(opt_str, opt_u32, opt_u64, opt_f32, opt_bool);
    }
    anyhow::bail!("`{key}` has a value that cannot be copied")
}
