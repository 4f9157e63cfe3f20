//! Draws the values of tensors and writes them as they are drawn.
//!
//! The formats of [`crate::Quant`] are applied here. Small matrices are drawn value by value. A large matrix
//! would take minutes, so each run of values in its rows is copied from a pool of [`POOL_LEN`] runs that were
//! drawn and quantized beforehand. Its rows differ, its values have the same distribution, and writing it
//! costs little more than copying.

use std::borrow::Cow;
use std::collections::HashMap;

use baton_engine::gguf::GgufWriter;
use baton_kernels_cpu::{Format, quantize_row};
use baton_random::SplitMix64;

use crate::{END_TOKEN, Quant, SyntheticError, SyntheticModel};

/// Matrices of more values are assembled from a pool.
const DRAWN_VALUES_MAX: u64 = 1 << 21;
/// Runs in a pool.
const POOL_LEN: usize = 4096;
/// Maximum number of values in a run.
const RUN_LEN_MAX: u32 = 256;
/// Bytes collected before they are written.
const PIECE_BYTES: usize = 1 << 20;

/// The destination of the tensors, which come in the order of the file.
pub(crate) enum Sink<'a> {
    /// Adds whole tensors to the writer.
    Lend(&'a mut GgufWriter<'static>),
    /// Declares names and sizes to the writer; nothing is drawn.
    Declare { writer: &'a mut GgufWriter<'static>, total_bytes: &'a mut u64 },
    /// Writes data to a file whose header is already written.
    Put(&'a mut dyn FnMut(&[u8]) -> Result<(), SyntheticError>),
    /// Lists names, dimensions and type numbers; nothing is drawn.
    #[cfg(test)]
    List(&'a mut Vec<(String, Vec<u64>, u32)>),
}

/// Draws tensors and sends them to a [`Sink`].
pub(crate) struct Weights<'a> {
    sink: Sink<'a>,
    drawing: Drawing,
    quant: Quant,
    n_layers: u32,
    tied: bool,
    endless: bool,
}

impl<'a> Weights<'a> {
    pub(crate) fn new(model: &SyntheticModel, sink: Sink<'a>) -> Self {
        Self {
            sink,
            drawing: Drawing { seed: model.seed, random: SplitMix64::new(model.seed), pools: HashMap::new() },
            quant: model.quant,
            n_layers: model.n_layers,
            tied: model.tied,
            endless: model.endless,
        }
    }

    /// Writes a matrix in the format that follows from its name and width.
    pub(crate) fn matrix(
        &mut self,
        name: &str,
        rows: u32,
        cols: u32,
        std: f64,
    ) -> Result<(), SyntheticError> {
        self.stack(name, &[cols, rows], std)
    }

    /// Writes a stack of matrices, columns first, in the format that follows from its name and width.
    pub(crate) fn stack(&mut self, name: &str, dims: &[u32], std: f64) -> Result<(), SyntheticError> {
        let format = self.quant.of(name, dims[0], self.n_layers, self.tied);
        self.shaped(name, dims, format, std)
    }

    /// Writes a tensor of any dimensions, columns first.
    pub(crate) fn shaped(
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

    pub(crate) fn vector(&mut self, name: &str, len: u32, mean: f64, std: f64) -> Result<(), SyntheticError> {
        self.drawn(&Tensor { name, dims: &[len], format: Format::F32, mean, std, zero_row: None })
    }

    /// Writes a vector of the given values.
    pub(crate) fn values(&mut self, name: &str, values: &[f32]) -> Result<(), SyntheticError> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let dims = [values.len() as u64];
        match &mut self.sink {
            Sink::Lend(writer) => writer.tensor(name, &dims, Format::F32, Cow::Owned(bytes)).map(drop)?,
            Sink::Declare { writer, total_bytes } => {
                writer.declare(name, &dims, Format::F32)?;
                **total_bytes += bytes.len() as u64;
            }
            Sink::Put(put) => put(&bytes)?,
            #[cfg(test)]
            Sink::List(list) => list.push((name.to_owned(), dims.to_vec(), Format::F32.ggml_type())),
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
            #[cfg(test)]
            Sink::List(list) => list.push((tensor.name.to_owned(), dims, tensor.format.ggml_type())),
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
    /// Index of the row that is zero instead of drawn.
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

    /// Returns the length of the longest run of whole blocks that divides a row.
    fn run_len(&self) -> u32 {
        let mut run_len = RUN_LEN_MAX;
        while !self.cols().is_multiple_of(run_len) && run_len > self.format.block_len() as u32 {
            run_len /= 2;
        }
        run_len
    }
}

/// The random values, decided by a seed and the order of the tensors.
struct Drawing {
    seed: u64,
    random: SplitMix64,
    /// Quantized runs by format, length and standard deviation (its bits).
    pools: HashMap<(Format, u32, u64), Vec<u8>>,
}

impl Drawing {
    /// Passes the tensor's bytes to `put`, piece by piece.
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
                bytes[start..].fill(0); // Zero in every format: the scale of a block is 0 too.
            }
            if bytes.len() >= PIECE_BYTES || row + 1 == rows {
                put(&bytes)?;
                bytes.clear();
            }
        }
        Ok(())
    }

    fn values(&mut self, tensor: &Tensor<'_>, count: u32) -> Vec<f32> {
        (0..count).map(|_| (tensor.mean + tensor.std * normal(&mut self.random)) as f32).collect()
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
            let at = (self.random.next_u64() >> 32) as usize % POOL_LEN;
            bytes.extend_from_slice(&pool[at * run_bytes..(at + 1) * run_bytes]);
        }
        Ok(())
    }

    fn pool(&self, tensor: &Tensor<'_>, run_len: u32) -> Result<Vec<u8>, SyntheticError> {
        let seed = self.seed ^ tensor.std.to_bits() ^ u64::from(tensor.format.ggml_type()) << 32;
        let mut own = Self { seed, random: SplitMix64::new(seed), pools: HashMap::new() };
        let mut bytes = Vec::new();
        for _ in 0..POOL_LEN {
            tensor.quantize(&own.values(tensor, run_len), &mut bytes)?;
        }
        Ok(bytes)
    }
}

/// Draws a number of mean 0 and variance 1: the sum of twelve uniform numbers minus six.
pub(crate) fn normal(random: &mut SplitMix64) -> f64 {
    (0..12).map(|_| random.unit()).sum::<f64>() - 6.0
}
