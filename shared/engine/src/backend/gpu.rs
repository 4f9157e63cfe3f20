//! The GPU backend: rows and weights in a device's memory, arithmetic by its kernels.
//!
//! One file for both kernel sets: it knows [`Device`] and [`ops`] only. Calls are queued and return at once;
//! [`Backend::read`] and [`Backend::settle`] wait and say whether the device failed. Weights are copied to
//! the device when they are first used. Their address tells them apart, since a model never moves or changes
//! them while it is open. Recurrent layers have no kernels here; such models are refused by name.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use baton_kernels_cpu::{Matrix, PART, RopeStyle};
use baton_kernels_gpu::ops::{self, AttentionArgs, AttentionItems, Groups};
use baton_kernels_gpu::{Buffer, Device, DeviceMatrix, DeviceStack, GpuError, MapOp, ZipOp};

use super::gpu_attention::{items, visible};
use super::gpu_experts::GpuRoutes;
use super::gpu_kv::GpuKv;
use super::{Attending, AttentionShape, Backend, DeltaInput, Norm, Recurrence, ScoreTarget, SeqSpan};
use crate::eviction::Kept;
use crate::family::Activation;
use crate::kv::BlockCopy;
use crate::kv::pool::BlockId;
use crate::kv::states::StateMoves;
use crate::rope::RopeTable;
use crate::routing::{ExpertRows, Router};
use crate::sampling::{Best, NotFinite};
use crate::tokenizer::TokenId;
use crate::weights::{ExpertStacks, Weight, WeightError};

/// With fewer workgroups than this, the parts of the keys are divided among workgroups too.
pub(crate) const GROUPS_MIN: usize = 128;

/// Copies matrices to the device shortly before they are used.
pub(crate) trait MatrixLoads: Send + Sync + std::fmt::Debug {
    /// Sees to it that a matrix is in the device's memory when it is used next. Does nothing for matrices
    /// that are not among those it loads.
    ///
    /// # Errors
    /// [`WeightError::Read`] if it cannot be read.
    fn ready(&self, place: MatrixPlace) -> Result<(), WeightError>;
}

/// A device that computes, and the weights in its memory.
#[derive(Debug)]
pub(crate) struct GpuBackend {
    device: Arc<dyn Device>,
    /// That of the device when this was made: its memory is of that time.
    generation: u64,
    matrices: ResidentMatrices,
    /// The experts of layers, by the place of all their matrices of one kind in the host's memory.
    pub(super) stacks: Mutex<HashMap<MatrixPlace, Option<Arc<DeviceStack>>>>,
    pub(super) loads: OnceLock<Arc<dyn MatrixLoads>>,
    vectors: Mutex<HashMap<(usize, usize), Buffer>>,
    /// Tables of the pass under way that layer after layer uses, by their numbers.
    tables: Mutex<HashMap<Vec<u32>, Buffer>>,
}

/// A matrix's place in the host's memory: address and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct MatrixPlace(usize, usize);

impl MatrixPlace {
    /// Returns the place of stored bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(bytes.as_ptr() as usize, bytes.len())
    }
}

/// The matrices in the device's memory, by their place in the host's. Copies are the same list.
#[derive(Debug, Clone, Default)]
pub(crate) struct ResidentMatrices(Arc<Mutex<HashMap<MatrixPlace, Arc<DeviceMatrix>>>>);

impl ResidentMatrices {
    fn lock(&self) -> MutexGuard<'_, HashMap<MatrixPlace, Arc<DeviceMatrix>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds matrices that somebody else has copied to the device.
    pub(crate) fn add(&self, matrices: &[(MatrixPlace, Arc<DeviceMatrix>)]) {
        self.lock().extend(matrices.iter().cloned());
    }

    /// Removes them.
    pub(crate) fn remove(&self, matrices: &[(MatrixPlace, Arc<DeviceMatrix>)]) {
        let mut all = self.lock();
        for (place, _) in matrices {
            all.remove(place);
        }
    }
}

/// Activations, `[t, width]`, in the device's memory.
#[derive(Debug)]
pub(crate) struct GpuRows {
    pub(super) data: Buffer,
    pub(super) t: usize,
    pub(super) width: usize,
}

impl GpuRows {
    /// Returns how many numbers there are.
    fn len(&self) -> usize {
        self.t * self.width
    }
}

impl GpuBackend {
    pub(crate) fn new(device: Arc<dyn Device>) -> Self {
        let (vectors, tables, generation) = (Mutex::default(), Mutex::default(), device.generation());
        let (matrices, stacks, loads) = (ResidentMatrices::default(), Mutex::default(), OnceLock::new());
        Self { device, generation, matrices, stacks, loads, vectors, tables }
    }

    /// Returns the device.
    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    pub(super) fn dev(&self) -> &dyn Device {
        &*self.device
    }

    /// Returns the list of matrices in the device's memory.
    pub(crate) fn matrices(&self) -> &ResidentMatrices {
        &self.matrices
    }

    /// Lets somebody load matrices. Only the first call has an effect.
    pub(crate) fn set_loads(&self, loads: Arc<dyn MatrixLoads>) {
        self.loads.get_or_init(|| loads);
    }

    /// Returns the matrix in the device's memory. Use it before the next one is asked for.
    pub(super) fn matrix(&self, matrix: &Matrix<'_>) -> Result<Arc<DeviceMatrix>, WeightError> {
        let place = MatrixPlace::of(matrix.bytes());
        if let Some(loads) = self.loads.get() {
            loads.ready(place)?;
        }
        let copy = || Arc::new(DeviceMatrix::new(self.dev(), matrix));
        Ok(Arc::clone(self.matrices.lock().entry(place).or_insert_with(copy)))
    }

    /// Returns a norm's weight or a bias in the device's memory.
    pub(super) fn vector(&self, numbers: &[f32]) -> Buffer {
        let place = (numbers.as_ptr() as usize, numbers.len());
        let mut vectors = self.vectors.lock().unwrap_or_else(PoisonError::into_inner);
        vectors.entry(place).or_insert_with(|| self.lasting(numbers)).clone()
    }

    /// Returns numbers in memory that may be kept for long.
    fn lasting(&self, numbers: &[f32]) -> Buffer {
        let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        let buffer = self.device.alloc(bytes.len().max(4) as u64);
        self.device.write(&buffer, 0, &bytes);
        buffer
    }

    pub(super) fn table(&self, numbers: impl Iterator<Item = usize>) -> Buffer {
        let numbers: Vec<u32> = numbers.map(|n| n as u32).collect();
        ops::table(self.dev(), &numbers)
    }

    fn tables(&self) -> MutexGuard<'_, HashMap<Vec<u32>, Buffer>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a table that other layers of the pass use too.
    pub(super) fn shared_table(&self, numbers: Vec<u32>) -> Buffer {
        let mut tables = self.tables();
        if let Some(table) = tables.get(&numbers) {
            return table.clone();
        }
        let table = ops::table(self.dev(), &numbers);
        tables.insert(numbers, table.clone());
        table
    }

    pub(super) fn alloc(&self, t: usize, width: usize) -> GpuRows {
        let bytes = (4 * t * width).max(4) as u64;
        GpuRows { data: self.device.alloc(bytes), t, width }
    }

    pub(super) fn map(&self, op: MapOp, x: &GpuRows, a: f32) {
        ops::map(self.dev(), op, &x.data, x.len(), a);
    }

    fn zip(&self, op: ZipOp, x: &GpuRows, y: &GpuRows) {
        ops::zip(self.dev(), op, &x.data, &y.data, x.len());
    }

    /// Fails if the device has a fault, or has given up memory since this was made.
    pub(super) fn fault(&self) -> Result<(), WeightError> {
        if self.device.generation() != self.generation {
            let given_up = "what it kept was given up, because its memory was full".to_owned();
            return Err(GpuError::Lost(given_up).into());
        }
        self.device.fault().map_or(Ok(()), |err| Err(err.into()))
    }

    /// Reads from the start of a buffer, which ends the pass or a part of it.
    pub(super) fn read_bytes(&self, from: &Buffer, out: &mut [u8]) -> Result<(), WeightError> {
        self.tables().clear();
        self.device.read(from, 0, out)?;
        self.fault()
    }
}

impl Backend for GpuBackend {
    type Rows = GpuRows;
    type Kv = GpuKv;
    type Routes = GpuRoutes;

    fn rows(&self, t: usize, width: usize) -> GpuRows {
        self.alloc(t, width)
    }

    fn zeros(&self, t: usize, width: usize) -> GpuRows {
        let rows = self.alloc(t, width);
        self.device.clear(&rows.data);
        rows
    }

    fn prepare(&self, kv: &mut GpuKv, copies: &[BlockCopy], spans: &[SeqSpan]) {
        kv.prepare(self.dev(), copies, spans);
    }

    /// Does nothing: recurrent models are refused.
    fn prepare_states(&self, _kv: &mut GpuKv, _moves: &[StateMoves]) {}

    fn keep(&self, kv: &mut GpuKv, kept: &Kept, from: &[BlockId], to: &[BlockId]) {
        kv.keep(self.dev(), kept, from, to);
    }

    /// Rows of the table are decoded on the host, since a token needs one of them.
    fn embed(&self, table: &Matrix<'_>, ids: &[TokenId], out: &mut GpuRows) {
        let mut numbers = vec![0.0; out.len()];
        for (id, row) in ids.iter().zip(numbers.chunks_exact_mut(out.width)) {
            table
                .dequantize_row(*id as usize, row)
                .expect("the table was checked at open, the ids before the step");
        }
        let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        self.device.write(&out.data, 0, &bytes);
    }

    fn gather(&self, x: &GpuRows, rows: &[usize]) -> GpuRows {
        let out = self.alloc(rows.len(), x.width);
        let list = self.table(rows.iter().copied());
        ops::gather(self.dev(), &x.data, &list, (rows.len(), x.width), &out.data);
        out
    }

    fn take(&self, x: &GpuRows, group: usize, part: Range<usize>) -> GpuRows {
        let out = self.alloc(x.t, x.width / group * part.len());
        let (from, to) = (Groups { each: group, at: part.start }, Groups { each: part.len(), at: 0 });
        let count = x.len() / group;
        ops::copy(self.dev(), (&x.data, from), (&out.data, to), count, part.len());
        out
    }

    fn put(&self, x: &mut GpuRows, group: usize, part: Range<usize>, y: &GpuRows) {
        let (from, to) = (Groups { each: part.len(), at: 0 }, Groups { each: group, at: part.start });
        let count = x.len() / group;
        ops::copy(self.dev(), (&y.data, from), (&x.data, to), count, part.len());
    }

    fn rms_norm(&self, x: &GpuRows, weight: &[f32], eps: f32, out: &mut GpuRows) {
        let vector = self.vector(weight);
        ops::rms_norm(self.dev(), &x.data, (&vector, weight.len()), eps, x.t, &out.data);
    }

    fn norm_heads(&self, x: &mut GpuRows, weight: &[f32], eps: f32) {
        if !weight.is_empty() {
            let (vector, n) = (self.vector(weight), x.len() / weight.len());
            ops::rms_norm_in_place(self.dev(), &x.data, (&vector, weight.len()), eps, n);
        }
    }

    fn scale(&self, x: &mut GpuRows, factor: f32) {
        if factor != 1.0 {
            self.map(MapOp::Scale, x, factor);
        }
    }

    fn scale_rows(&self, x: &mut GpuRows, factors: &[f32]) {
        let factors = ops::floats(self.dev(), factors);
        ops::scale_rows(self.dev(), &x.data, &factors, (x.t, x.width));
    }

    fn soft_cap(&self, x: &mut GpuRows, cap: f32) {
        self.map(MapOp::SoftCap, x, cap);
    }

    fn project(&self, x: &GpuRows, into: &mut [(Weight<'_>, &mut GpuRows)]) -> Result<(), WeightError> {
        self.project_rounded(x, HashMap::new(), into)
    }

    fn norm_and_project(
        &self,
        x: &GpuRows,
        norm: Norm<'_>,
        normed: &mut GpuRows,
        into: &mut [(Weight<'_>, &mut GpuRows)],
    ) -> Result<(), WeightError> {
        let rounded = self.norm_rounded(x, norm, normed, into[0].0.format().block_len());
        self.project_rounded(normed, rounded, into)
    }

    fn norm_and_gate(
        &self,
        x: &GpuRows,
        norm: Norm<'_>,
        normed: &mut GpuRows,
        activation: Activation,
        [(gate_weight, gate), (up_weight, up)]: [(Weight<'_>, &mut GpuRows); 2],
    ) -> Result<(), WeightError> {
        let rounded = self.norm_rounded(x, norm, normed, gate_weight.format().block_len());
        if self.gate_joined(&rounded, activation, (gate_weight, up_weight), gate)? {
            return self.fault();
        }
        self.project_rounded(normed, rounded, &mut [(gate_weight, &mut *gate), (up_weight, &mut *up)])?;
        self.activate(activation, gate, up);
        Ok(())
    }

    fn project_and_add(
        &self,
        y: &GpuRows,
        weight: Weight<'_>,
        product: &mut GpuRows,
        x: &mut GpuRows,
    ) -> Result<(), WeightError> {
        if self.add_joined(y, weight, x)? {
            return self.fault();
        }
        self.project(y, &mut [(weight, &mut *product)])?;
        self.add(x, product);
        Ok(())
    }

    fn add_bias(&self, x: &mut GpuRows, bias: &[f32]) {
        if !bias.is_empty() {
            ops::add_bias(self.dev(), &x.data, &self.vector(bias), (x.t, x.width));
        }
    }

    fn add(&self, x: &mut GpuRows, y: &GpuRows) {
        self.zip(ZipOp::Add, x, y);
    }

    fn swiglu(&self, gate: &mut GpuRows, up: &GpuRows) {
        self.zip(ZipOp::Swiglu, gate, up);
    }

    fn geglu(&self, gate: &mut GpuRows, up: &GpuRows) {
        self.zip(ZipOp::Geglu, gate, up);
    }

    fn swiglu_clamped(&self, gate: &mut GpuRows, up: &GpuRows) {
        self.zip(ZipOp::SwigluClamped, gate, up);
    }

    fn add_scaled(&self, x: &mut GpuRows, rows: &[usize], factors: &[f32], y: &GpuRows) {
        let (list, factors) = (self.table(rows.iter().copied()), ops::floats(self.dev(), factors));
        ops::add_scaled(self.dev(), &x.data, &y.data, (&list, &factors), (rows.len(), x.width));
    }

    fn add_gated(&self, x: &mut GpuRows, gate: GpuRows, y: &GpuRows) {
        self.add_sigmoid_scaled(x, &gate, y);
    }

    fn route(&self, logits: GpuRows, router: &Router<'_>) -> GpuRoutes {
        self.chosen(&logits, router)
    }

    fn by_expert(&self, routes: GpuRoutes) -> Result<Vec<ExpertRows>, WeightError> {
        self.chosen_rows(&routes)
    }

    fn add_experts(
        &self,
        x: &GpuRows,
        experts: &ExpertStacks<'_>,
        routes: &GpuRoutes,
        activation: Activation,
        sum: &mut GpuRows,
    ) -> Result<bool, WeightError> {
        self.add_chosen(x, experts, routes, activation, sum)
    }

    fn rope(&self, x: &mut GpuRows, d_head: usize, table: &RopeTable, style: RopeStyle) {
        let [cos, sin] = table.on_gpu(|numbers| ops::floats(self.dev(), numbers));
        let shape = (x.t, x.width / d_head, d_head, table.pairs());
        ops::rope(self.dev(), style, &x.data, (cos, sin), shape);
    }

    fn split(&self, x: &GpuRows, width: usize, first: &mut GpuRows, second: &mut GpuRows) {
        let count = x.len() / (2 * width);
        for (out, at) in [(first, 0), (second, width)] {
            let (from, to) = (Groups { each: 2 * width, at }, Groups { each: width, at: 0 });
            ops::copy(self.dev(), (&x.data, from), (&out.data, to), count, width);
        }
    }

    fn gate_by_sigmoid(&self, x: &mut GpuRows, gate: &GpuRows) {
        self.zip(ZipOp::GateBySigmoid, x, gate);
    }

    fn short_conv(&self, _kv: &mut GpuKv, _of: &Recurrence<'_>, _bcx: &GpuRows, _out: &mut GpuRows) {
        unreachable!("{REFUSED}");
    }

    fn delta_net(
        &self,
        _kv: &mut GpuKv,
        _of: &Recurrence<'_>,
        _input: &DeltaInput<'_, GpuRows>,
        _out: &mut GpuRows,
    ) {
        unreachable!("{REFUSED}");
    }

    fn append(&self, kv: &mut GpuKv, layer: usize, k: &GpuRows, v: &GpuRows, spans: &[SeqSpan]) {
        let (places, t) = self.places(spans);
        let own = kv.layer(layer, spans, false);
        ops::append(self.dev(), &own, (&k.data, &v.data), (&places, t));
        kv.written(self.dev(), layer, spans, (&places, t));
    }

    fn rotate_and_append(
        &self,
        kv: &mut GpuKv,
        layer: usize,
        (d_head, table, style): (usize, &RopeTable, RopeStyle),
        (q, k, v): (&mut GpuRows, &mut GpuRows, &GpuRows),
        spans: &[SeqSpan],
    ) {
        let (places, t) = self.places(spans);
        // Every row of the pass is new in the cache.
        if !self.device.joins() || t != q.t {
            self.rope(q, d_head, table, style);
            self.rope(k, d_head, table, style);
            return self.append(kv, layer, k, v, spans);
        }
        let own = kv.layer(layer, spans, false);
        let [cos, sin] = table.on_gpu(|numbers| ops::floats(self.dev(), numbers));
        let tables = (cos, sin, table.pairs());
        let rows = (&q.data, &k.data, &v.data);
        ops::rope_append(self.dev(), style, &own, rows, tables, (&places, t, q.width / d_head));
        kv.written(self.dev(), layer, spans, (&places, t));
    }

    fn attend(
        &self,
        kv: &GpuKv,
        layer: usize,
        shape: &AttentionShape<'_>,
        q: &GpuRows,
        spans: &[SeqSpan],
        out: &mut GpuRows,
        lse: &mut GpuRows,
    ) {
        let (list, blocks) = items(spans, shape.group());
        let items = AttentionItems { table: self.shared_table(ops::item_words(&list)), list };
        let (window, first_keys) = visible(shape);
        let sinks = (!shape.sinks.is_empty()).then(|| self.vector(shape.sinks));
        let args = AttentionArgs {
            q: &q.data,
            kv: &kv.layer(layer, spans, true),
            blocks: &self.shared_table(blocks),
            items: &items,
            group: shape.group(),
            scale: shape.scale,
            cap: shape.cap,
            sinks: sinks.as_ref(),
            window,
            first_keys,
            out: &out.data,
            lse: &lse.data,
            lse_width: lse.width,
        };
        let is_long = items.list.iter().any(|item| item.position + item.rows > PART);
        if is_long && items.list.len() * shape.n_kv_heads < GROUPS_MIN {
            ops::attend_parts(self.dev(), &args);
        } else {
            ops::attend(self.dev(), &args);
        }
    }

    fn score(
        &self,
        queries: &Attending<'_, Self>,
        rows: Range<usize>,
        targets: &mut [ScoreTarget<'_>],
    ) -> Result<(), WeightError> {
        let heads: Vec<usize> = targets.iter().map(|target| target.head).collect();
        let sums = self.scores(queries, rows, &heads);
        for (target, sum) in targets.iter_mut().zip(sums) {
            let added = self.read(sum)?;
            target.sum.iter_mut().zip(added).for_each(|(sum, more)| *sum += more);
        }
        Ok(())
    }

    fn score_heads(
        &self,
        queries: &Attending<'_, Self>,
        row: usize,
        heads: &[usize],
        sum: &mut [f32],
    ) -> Result<(), WeightError> {
        let mut sums = self.scores(queries, row..row + 1, heads).into_iter();
        let Some(mut all) = sums.next() else { return Ok(()) };
        sums.for_each(|one| self.add(&mut all, &one));
        let added = self.read(all)?;
        sum.iter_mut().zip(added).for_each(|(sum, more)| *sum += more);
        Ok(())
    }

    fn write(&self, values: Vec<f32>, width: usize) -> GpuRows {
        GpuRows { data: self.lasting(&values), t: values.len() / width, width }
    }

    fn read(&self, x: GpuRows) -> Result<Vec<f32>, WeightError> {
        let mut bytes = vec![0; 4 * x.len()];
        self.read_bytes(&x.data, &mut bytes)?;
        Ok(bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect())
    }

    fn best(&self, logits: &GpuRows) -> Result<Option<Vec<Best>>, WeightError> {
        let out = self.alloc(logits.t, 3);
        ops::best(self.dev(), &logits.data, (logits.t, logits.width), &out.data);
        let mut bytes = vec![0; 4 * out.len()];
        self.read_bytes(&out.data, &mut bytes)?;
        let words: Vec<u32> = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let best = |[best, fault, bits]: &[u32; 3]| match *fault {
            u32::MAX => Ok(*best),
            id => Err(NotFinite { id, value: f32::from_bits(*bits) }),
        };
        Ok(Some(words.as_chunks().0.iter().map(best).collect()))
    }

    fn settle(&self, x: &GpuRows) -> Result<(), WeightError> {
        self.read_bytes(&x.data, &mut [0; 4])
    }
}

const REFUSED: &str = "models with recurrent layers are refused when the engine is made";
