//! Drawing the values of tensors, and writing them as they are drawn.
//!
//! The formats of [`super::Quant`] are applied here. Small matrices are drawn value by value. A large one would take
//! minutes, so each run of its rows is one of [`POOL_LEN`] drawn and quantized beforehand: its rows differ, its
//! values have the same distribution, and writing it costs little more than copying.

use std::borrow::Cow;
use std::collections::HashMap;

use baton_kernels_cpu::{Format, quantize_row};

use super::{END_TOKEN, Quant, SyntheticError, SyntheticModel};
use crate::gguf::GgufWriter;

/// Matrices of more values are put together from a pool.
const DRAWN_VALUES_MAX: u64 = 1 << 21;
/// Runs in a pool.
const POOL_LEN: usize = 4096;
/// Most values of a run.
const RUN_LEN_MAX: u32 = 256;
/// Bytes collected before they are written.
const PIECE_BYTES: usize = 1 << 20;

/// Where tensors go, in the order of the file.
pub(super) enum Sink<'a> {
    /// Into the writer, whole.
    Lend(&'a mut GgufWriter<'static>),
    /// Their names and sizes into the writer; nothing is drawn.
    Declare { writer: &'a mut GgufWriter<'static>, total_bytes: &'a mut u64 },
    /// Their data into a file whose header is written.
    Put(&'a mut dyn FnMut(&[u8]) -> Result<(), SyntheticError>),
}

/// Draws tensors and hands them on.
pub(super) struct Weights<'a> {
    sink: Sink<'a>,
    drawing: Drawing,
    quant: Quant,
    n_layers: u32,
    tied: bool,
    endless: bool,
}

impl<'a> Weights<'a> {
    pub(super) fn new(model: &SyntheticModel, sink: Sink<'a>) -> Self {
        Self {
            sink,
            drawing: Drawing { seed: model.seed, random: SplitMix64(model.seed), pools: HashMap::new() },
            quant: model.quant,
            n_layers: model.n_layers,
            tied: model.tied,
            endless: model.endless,
        }
    }

    /// A matrix in the format that its name and width call for.
    pub(super) fn matrix(
        &mut self,
        name: &str,
        rows: u32,
        cols: u32,
        std: f64,
    ) -> Result<(), SyntheticError> {
        self.stack(name, &[cols, rows], std)
    }

    /// A stack of matrices, columns first, in the format that its name and width call for.
    pub(super) fn stack(&mut self, name: &str, dims: &[u32], std: f64) -> Result<(), SyntheticError> {
        let format = self.quant.of(name, dims[0], self.n_layers, self.tied);
        self.shaped(name, dims, format, std)
    }

    /// A tensor of any dimensions, columns first.
    pub(super) fn shaped(
        &mut self,
        name: &str,
        dims: &[u32],
        format: Format,
        std: f64,
    ) -> Result<(), SyntheticError> {
        let head = if self.tied { "token_embd.weight" } else { "output.weight" };
        let zero_row = (self.endless && name == head).then_some(END_TOKEN);
        self.drawn(&Tensor { name, dims, format, mean: 0.0, std, zero_row })
    }

    pub(super) fn vector(&mut self, name: &str, len: u32, mean: f64, std: f64) -> Result<(), SyntheticError> {
        self.drawn(&Tensor { name, dims: &[len], format: Format::F32, mean, std, zero_row: None })
    }

    /// A vector of given values.
    pub(super) fn values(&mut self, name: &str, values: &[f32]) -> Result<(), SyntheticError> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let dims = [values.len() as u64];
        match &mut self.sink {
            Sink::Lend(writer) => writer.tensor(name, &dims, Format::F32, Cow::Owned(bytes)).map(drop)?,
            Sink::Declare { writer, total_bytes } => {
                writer.declare(name, &dims, Format::F32)?;
                **total_bytes += bytes.len() as u64;
            }
            Sink::Put(put) => put(&bytes)?,
        }
        Ok(())
    }

    fn drawn(&mut self, tensor: &Tensor<'_>) -> Result<(), SyntheticError> {
        let dims: Vec<u64> = tensor.dims.iter().map(|dim| u64::from(*dim)).collect();
        match &mut self.sink {
            Sink::Lend(writer) => {
                let mut bytes = Vec::new();
                self.drawing.draw(tensor, |piece| {
                    bytes.extend_from_slice(piece);
                    Ok(())
                })?;
                writer.tensor(tensor.name, &dims, tensor.format, Cow::Owned(bytes))?;
            }
            Sink::Declare { writer, total_bytes } => {
                writer.declare(tensor.name, &dims, tensor.format)?;
                let row_bytes = tensor.format.row_bytes(tensor.cols() as usize).unwrap_or(0) as u64;
                **total_bytes += row_bytes * u64::from(tensor.rows());
            }
            Sink::Put(put) => self.drawing.draw(tensor, put)?,
        }
        Ok(())
    }
}

/// A tensor to be drawn.
struct Tensor<'a> {
    name: &'a str,
    /// Columns first.
    dims: &'a [u32],
    format: Format,
    mean: f64,
    std: f64,
    /// A row of zeros in place of what was drawn.
    zero_row: Option<u32>,
}

impl Tensor<'_> {
    fn cols(&self) -> u32 {
        self.dims[0]
    }

    fn rows(&self) -> u32 {
        self.dims[1..].iter().product()
    }

    fn quantize(&self, values: &[f32], bytes: &mut Vec<u8>) -> Result<(), SyntheticError> {
        quantize_row(self.format, values, bytes)
            .map_err(|err| SyntheticError::Quantize { name: self.name.to_owned(), err })
    }

    /// The longest run of whole blocks that divides a row.
    fn run_len(&self) -> u32 {
        let mut run_len = RUN_LEN_MAX;
        while !self.cols().is_multiple_of(run_len) && run_len > self.format.block_len() as u32 {
            run_len /= 2;
        }
        run_len
    }
}

/// The values, decided by a seed and the order of the tensors.
struct Drawing {
    seed: u64,
    random: SplitMix64,
    /// Quantized runs by format, length and deviation.
    pools: HashMap<(Format, u32, u64), Vec<u8>>,
}

impl Drawing {
    /// Hands the tensor's bytes to `put`, piece by piece.
    fn draw(
        &mut self,
        tensor: &Tensor<'_>,
        mut put: impl FnMut(&[u8]) -> Result<(), SyntheticError>,
    ) -> Result<(), SyntheticError> {
        let (rows, cols) = (tensor.rows(), tensor.cols());
        let pooled = u64::from(rows) * u64::from(cols) > DRAWN_VALUES_MAX;
        let mut bytes = Vec::new();
        for row in 0..rows {
            let start = bytes.len();
            if pooled {
                self.pooled_row(tensor, &mut bytes)?;
            } else {
                tensor.quantize(&self.values(tensor, cols), &mut bytes)?;
            }
            if tensor.zero_row == Some(row) {
                bytes[start..].fill(0); // Zeros in every format: the scale of a block of zero bytes is 0.
            }
            if bytes.len() >= PIECE_BYTES || row + 1 == rows {
                put(&bytes)?;
                bytes.clear();
            }
        }
        Ok(())
    }

    fn values(&mut self, tensor: &Tensor<'_>, count: u32) -> Vec<f32> {
        (0..count).map(|_| (tensor.mean + tensor.std * self.random.unit()) as f32).collect()
    }

    fn pooled_row(&mut self, tensor: &Tensor<'_>, bytes: &mut Vec<u8>) -> Result<(), SyntheticError> {
        let run_len = tensor.run_len();
        let key = (tensor.format, run_len, tensor.std.to_bits());
        if !self.pools.contains_key(&key) {
            let pool = self.pool(tensor, run_len)?;
            self.pools.insert(key, pool);
        }
        let pool = &self.pools[&key];
        let run_bytes = pool.len() / POOL_LEN;
        for _ in 0..tensor.cols() / run_len {
            let at = (self.random.next() >> 32) as usize % POOL_LEN;
            bytes.extend_from_slice(&pool[at * run_bytes..(at + 1) * run_bytes]);
        }
        Ok(())
    }

    fn pool(&self, tensor: &Tensor<'_>, run_len: u32) -> Result<Vec<u8>, SyntheticError> {
        let seed = self.seed ^ tensor.std.to_bits() ^ u64::from(tensor.format.ggml_type()) << 32;
        let mut own = Self { seed, random: SplitMix64(seed), pools: HashMap::new() };
        let mut bytes = Vec::new();
        for _ in 0..POOL_LEN {
            tensor.quantize(&own.values(tensor, run_len), &mut bytes)?;
        }
        Ok(bytes)
    }
}

/// A small generator with a fixed definition. Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom
/// number generators".
pub(super) struct SplitMix64(pub(super) u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Mean 0 and variance 1: the sum of twelve uniform numbers less six.
    pub(super) fn unit(&mut self) -> f64 {
        (0..12).map(|_| (self.next() >> 11) as f64 / (1u64 << 53) as f64).sum::<f64>() - 6.0
    }
}
