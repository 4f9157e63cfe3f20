//! The plan of an import: the tensors of the file, the tensors of the folder they are made from, and their
//! formats.
//!
//! Pure: reads no weights. Always holds: every tensor of the folder is either in the plan or known to be
//! useless. Every tensor in the plan exists with the shape that `config.json` implies.

use std::collections::{BTreeMap, BTreeSet};

use baton_engine::gguf::{GgufWriter, MetaValue};
use baton_kernels_cpu::Format;
use candle_core::quantized::GgmlDType;

use crate::architecture::{Architecture, ExpertNames, Projections, Window};
use crate::error::ImportError;
use crate::hf_config::HfConfig;
use crate::mix::{self, Quantization, Role, Shape};
use crate::rope::RopeParts;
use crate::safetensors::TensorFiles;

/// Metadata of the file, without its vocabulary.
#[derive(Debug)]
pub(crate) struct ModelKeys {
    prefix: &'static str,
    keys: Vec<(&'static str, MetaValue)>,
}

impl ModelKeys {
    fn set(&mut self, key: &'static str, value: impl Into<MetaValue>) {
        self.keys.push((key, value.into()));
    }

    /// Writes the keys under the architecture's prefix.
    pub(crate) fn write(&self, writer: &mut GgufWriter<'_>) {
        for (key, value) in &self.keys {
            writer.set(&format!("{}.{key}", self.prefix), value.clone());
        }
    }
}

/// The source of a tensor's numbers.
#[derive(Debug)]
pub(crate) enum Content {
    /// Matrices of the folder, one after the other: the experts of a layer, or a single matrix.
    Stored {
        names: Vec<String>,
        rows: usize,
        cols: usize,
        /// Width of the heads whose rows are reordered from halves to neighbouring pairs.
        pairs_in: Option<usize>,
        /// Added to every number.
        offset: f32,
    },
    /// Numbers that the importer computes.
    Values(Vec<f32>),
}

/// A tensor of the file.
#[derive(Debug)]
pub(crate) struct PlannedTensor {
    pub(crate) name: String,
    /// In ggml's order: elements of a row first.
    pub(crate) dims: Vec<u64>,
    pub(crate) content: Content,
    pub(crate) format: GgmlDType,
    role: Role,
    layer: u32,
}

/// The whole plan.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) metadata: ModelKeys,
    pub(crate) tensors: Vec<PlannedTensor>,
    pub(crate) vocab_len: usize,
    shape: Shape,
}

impl Plan {
    /// Plans a model; formats are F32 until they are chosen.
    pub(crate) fn new(
        architecture: &'static Architecture,
        config: &HfConfig,
        files: &TensorFiles,
    ) -> Result<Plan, ImportError> {
        let builder = Builder::new(architecture, config, files)?;
        builder.build()
    }

    /// Chooses the format of each tensor.
    ///
    /// # Errors
    /// [`ImportError::NoFormat`] if the engine cannot compute with one of them.
    pub(crate) fn choose_formats(&mut self, mix: Quantization) -> Result<(), ImportError> {
        for tensor in &mut self.tensors {
            tensor.format = mix::format(mix, tensor.role, tensor.layer, tensor.dims[0], &self.shape);
            tensor.storage()?;
        }
        Ok(())
    }

    /// Returns the number of tensors of each format, by its name.
    pub(crate) fn formats(&self) -> BTreeMap<&'static str, usize> {
        let mut formats = BTreeMap::new();
        for tensor in &self.tensors {
            *formats.entry(mix::format_name(tensor.format)).or_default() += 1;
        }
        formats
    }

    /// Returns rows and columns of every matrix of the folder that an adapter may change, by its name there.
    pub(crate) fn matrices(&self) -> BTreeMap<&str, (usize, usize)> {
        let mut matrices = BTreeMap::new();
        // The embedding table is looked up by token; adapters change it in another way.
        for tensor in self.tensors.iter().filter(|tensor| tensor.name != EMBEDDING) {
            if let Content::Stored { names, rows, cols, .. } = &tensor.content
                && *cols > 1
            {
                matrices.extend(names.iter().map(|name| (name.as_str(), (*rows, *cols))));
            }
        }
        matrices
    }
}

impl PlannedTensor {
    /// Returns the format as the engine names it.
    ///
    /// # Errors
    /// [`ImportError::NoFormat`] if the engine cannot compute with it.
    pub(crate) fn storage(&self) -> Result<Format, ImportError> {
        let format = Format::from_ggml_type(mix::ggml_type(self.format));
        format.ok_or_else(|| ImportError::NoFormat {
            name: self.name.clone(),
            format: mix::format_name(self.format),
        })
    }

    /// Returns the bytes of its data in the file.
    pub(crate) fn data_len(&self) -> u64 {
        let blocks = self.dims.iter().product::<u64>() / self.format.block_size() as u64;
        blocks * self.format.type_size() as u64
    }
}

const EMBEDDING: &str = "token_embd.weight";
/// The period of [`Window::Alternating`]: of this many consecutive layers, all but the last have the window.
const ALTERNATION: u32 = 6;

/// Collects tensors and metadata.
struct Builder<'a> {
    architecture: &'static Architecture,
    config: &'a HfConfig,
    files: &'a TensorFiles,
    widths: Widths,
    keys: ModelKeys,
    tensors: Vec<PlannedTensor>,
    used: BTreeSet<String>,
}

#[derive(Debug, Clone, Copy)]
struct Widths {
    n_layers: u32,
    n_heads: u32,
    n_kv_heads: u32,
    d_head: u32,
    d_model: usize,
    d_ff: usize,
    vocab_len: usize,
}

impl<'a> Builder<'a> {
    fn new(
        architecture: &'static Architecture,
        config: &'a HfConfig,
        files: &'a TensorFiles,
    ) -> Result<Builder<'a>, ImportError> {
        let json = &config.json;
        let widths = Widths {
            n_layers: json.count("num_hidden_layers")?,
            n_heads: json.count("num_attention_heads")?,
            n_kv_heads: config.n_kv_heads()?,
            d_head: config.d_head()?,
            d_model: json.count("hidden_size")? as usize,
            d_ff: json.count("intermediate_size")? as usize,
            vocab_len: json.count("vocab_size")? as usize,
        };
        if !widths.n_heads.is_multiple_of(widths.n_kv_heads) {
            let want = format!("a divisor of the {} attention heads", widths.n_heads);
            return Err(json.unsupported("num_key_value_heads", want));
        }
        if !widths.d_head.is_multiple_of(2) {
            return Err(json.unsupported("head_dim", "even"));
        }
        let keys = ModelKeys { prefix: architecture.gguf, keys: Vec::new() };
        let (tensors, used) = (Vec::new(), BTreeSet::new());
        Ok(Builder { architecture, config, files, widths, keys, tensors, used })
    }

    fn build(mut self) -> Result<Plan, ImportError> {
        self.check_activation()?;
        self.set_keys()?;
        let (e, v) = (self.widths.d_model, self.widths.vocab_len);
        let tied = self.config.json.opt_bool("tie_word_embeddings")?.unwrap_or(self.architecture.tied);
        let role = if tied { Role::Output } else { Role::Embedding };
        self.matrix(EMBEDDING, "model.embed_tokens.weight".to_owned(), (v, e), role, 0)?;
        self.norm("output_norm.weight", "model.norm.weight".to_owned(), e)?;
        match tied {
            // Some programs write it although it is the embedding table.
            true => drop(self.used.insert("lm_head.weight".to_owned())),
            false => self.matrix("output.weight", "lm_head.weight".to_owned(), (v, e), Role::Output, 0)?,
        }
        let experts = self.architecture.experts;
        let n_experts = match &experts {
            Some(names) => self.set_expert_keys(names)?,
            None => 0,
        };
        self.rope()?;
        for layer in 0..self.widths.n_layers {
            self.attention(layer)?;
            match &experts {
                Some(names) => self.experts(layer, names, n_experts)?,
                None => self.feed_forward(layer)?,
            }
        }
        self.refuse_unknown()?;
        let Widths { n_layers, n_heads, n_kv_heads, vocab_len, .. } = self.widths;
        let of_80 = n_layers == 80 && matches!(self.architecture.gguf, "llama" | "qwen2");
        let large = of_80 && (self.architecture.gguf != "llama" || n_heads != n_kv_heads);
        let shape = Shape { n_layers, n_heads, n_kv_heads, n_experts, large };
        Ok(Plan { metadata: self.keys, tensors: self.tensors, vocab_len, shape })
    }

    fn check_activation(&self) -> Result<(), ImportError> {
        let json = &self.config.json;
        let wanted = self.architecture.activations;
        // Gemma files have both keys; `hidden_activation` is the valid one.
        let key = if json.get("hidden_activation").is_some() { "hidden_activation" } else { "hidden_act" };
        match json.opt_str(key)? {
            Some(found) if !wanted.contains(&found) => Err(json.unsupported(key, wanted.join(" or "))),
            _ => Ok(()),
        }
    }

    fn set_keys(&mut self) -> Result<(), ImportError> {
        let json = &self.config.json;
        let Widths { n_layers, n_heads, n_kv_heads, d_head, d_model, d_ff, vocab_len } = self.widths;
        let context_len = json.count("max_position_embeddings")?;
        let norm_eps = json.f64("rms_norm_eps")? as f32;
        for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
            self.config.require_f64(key, 0.0)?;
        }
        if let Some(scalar) = json.opt_f64("query_pre_attn_scalar")? {
            // Wider models of the family divide by the model's width over its heads; the engine knows which.
            let by_model = f64::from(self.widths.d_model as u32) / f64::from(n_heads);
            if scalar != f64::from(d_head) && !(n_layers == 62 && scalar == by_model) {
                return Err(json.unsupported("query_pre_attn_scalar", d_head.to_string()));
            }
        }
        let window = self.window()?;
        let keys = &mut self.keys;
        keys.set("block_count", n_layers);
        keys.set("context_length", context_len);
        keys.set("embedding_length", d_model as u32);
        keys.set("feed_forward_length", d_ff as u32);
        keys.set("attention.head_count", n_heads);
        keys.set("attention.head_count_kv", n_kv_heads);
        keys.set("attention.key_length", d_head);
        keys.set("attention.value_length", d_head);
        keys.set("attention.layer_norm_rms_epsilon", norm_eps);
        keys.set("vocab_size", vocab_len as u32);
        match window {
            Some(tokens) => keys.set("attention.sliding_window", tokens),
            // If the key were absent, the window of the family's first models would be assumed.
            None if self.architecture.gguf == "phi3" => keys.set("attention.sliding_window", 0u32),
            None => {}
        }
        Ok(())
    }

    /// Returns the number of tokens that a layer with a window sees.
    fn window(&self) -> Result<Option<u32>, ImportError> {
        let json = &self.config.json;
        let given = json.opt_count("sliding_window")?;
        match self.architecture.window {
            Window::Ignored => Ok(None),
            Window::Everywhere => Ok(given),
            Window::WhereUsed => {
                if json.opt_bool("use_sliding_window")? != Some(true) || given.is_none() {
                    return Ok(None);
                }
                // The window applies only to layers from this one on.
                match json.opt_f64("max_window_layers")? {
                    Some(first) if first > 0.0 => {
                        Err(json.unsupported("max_window_layers", "0: a window in every layer"))
                    }
                    _ => Ok(given),
                }
            }
            Window::Alternating => {
                self.check_alternation()?;
                given.map(Some).ok_or_else(|| json.unsupported("sliding_window", "a number of tokens"))
            }
        }
    }

    /// Refuses an order of windowed and full layers that differs from the family's.
    fn check_alternation(&self) -> Result<(), ImportError> {
        let json = &self.config.json;
        for key in ["sliding_window_pattern", "_sliding_window_pattern"] {
            if json.opt_count(key)?.is_some_and(|pattern| pattern != ALTERNATION) {
                return Err(json.unsupported(key, ALTERNATION.to_string()));
            }
        }
        let Some(kinds) = json.get("layer_types") else { return Ok(()) };
        let wanted = (1..=self.widths.n_layers)
            .map(|no| if no.is_multiple_of(ALTERNATION) { "full_attention" } else { "sliding_attention" });
        if kinds.as_array().is_some_and(|kinds| kinds.iter().eq(wanted)) {
            return Ok(());
        }
        let want = format!("full_attention for each {ALTERNATION}th layer, sliding_attention for the others");
        Err(json.unsupported("layer_types", want))
    }

    fn set_expert_keys(&mut self, names: &ExpertNames) -> Result<u32, ImportError> {
        let json = &self.config.json;
        let count = json.count(names.count_key)?;
        let used = json.count("num_experts_per_tok")?;
        if used > count {
            return Err(json.unsupported("num_experts_per_tok", format!("at most the {count} experts")));
        }
        if json.opt_bool("norm_topk_prob")?.unwrap_or(names.normalized_by_default) != names.normalized {
            return Err(json.unsupported("norm_topk_prob", names.normalized.to_string()));
        }
        self.config.require_f64("decoder_sparse_step", 1.0)?;
        if json.get("mlp_only_layers").is_some_and(|layers| layers.as_array().is_none_or(|l| !l.is_empty())) {
            return Err(json.unsupported("mlp_only_layers", "empty: experts in every layer"));
        }
        let width = json.count(names.width_key)?;
        let shared = if names.shared { Some(json.count("shared_expert_intermediate_size")?) } else { None };
        self.keys.set("expert_count", count);
        self.keys.set("expert_used_count", used);
        if names.width_key != "intermediate_size" {
            self.keys.set("expert_feed_forward_length", width);
        }
        if let Some(shared) = shared {
            self.keys.set("expert_shared_feed_forward_length", shared);
        }
        Ok(count)
    }

    fn rope(&mut self) -> Result<(), ImportError> {
        let parts = RopeParts::new(self.config, self.architecture, self.widths.d_head)?;
        self.keys.keys.extend(parts.metadata);
        for (name, values) in parts.tensors {
            self.tensors.push(PlannedTensor {
                name: name.to_owned(),
                dims: vec![values.len() as u64],
                content: Content::Values(values),
                format: GgmlDType::F32,
                role: Role::Exact,
                layer: 0,
            });
        }
        Ok(())
    }

    fn attention(&mut self, layer: u32) -> Result<(), ImportError> {
        let e = self.widths.d_model;
        let d = self.widths.d_head as usize;
        let (q, kv) = (self.widths.n_heads as usize * d, self.widths.n_kv_heads as usize * d);
        let (from, to) = (move |rest: &str| format!("model.layers.{layer}.{rest}"), blk(layer));
        self.norm(&to("attn_norm.weight"), from("input_layernorm.weight"), e)?;
        match self.architecture.projections {
            Projections::Fused => {
                let name = from("self_attn.qkv_proj.weight");
                self.matrix(&to("attn_qkv.weight"), name, (q + 2 * kv, e), Role::AttnV, layer)?;
            }
            Projections::Apart => {
                for (letter, rows, role) in
                    [("q", q, Role::Other), ("k", kv, Role::AttnK), ("v", kv, Role::AttnV)]
                {
                    let pairs_in = (self.architecture.pair_rows && letter != "v").then_some(d);
                    let (out, name) = (format!("attn_{letter}"), format!("self_attn.{letter}_proj"));
                    let (weight, bias) = (from(&format!("{name}.weight")), from(&format!("{name}.bias")));
                    self.stored(
                        &to(&format!("{out}.weight")),
                        vec![weight],
                        (rows, e),
                        role,
                        layer,
                        pairs_in,
                    )?;
                    if self.files.find(&bias).is_some() {
                        self.vector(&to(&format!("{out}.bias")), bias, rows, 0.0, pairs_in)?;
                    }
                }
            }
        }
        let name = from("self_attn.o_proj.weight");
        self.matrix(&to("attn_output.weight"), name, (e, q), Role::AttnOutput, layer)?;
        if self.architecture.head_norms {
            self.norm(&to("attn_q_norm.weight"), from("self_attn.q_norm.weight"), d)?;
            self.norm(&to("attn_k_norm.weight"), from("self_attn.k_norm.weight"), d)?;
        }
        if self.architecture.post_norms {
            self.norm(&to("post_attention_norm.weight"), from("post_attention_layernorm.weight"), e)?;
            self.norm(&to("ffn_norm.weight"), from("pre_feedforward_layernorm.weight"), e)?;
            self.norm(&to("post_ffw_norm.weight"), from("post_feedforward_layernorm.weight"), e)
        } else {
            self.norm(&to("ffn_norm.weight"), from("post_attention_layernorm.weight"), e)
        }
    }

    fn feed_forward(&mut self, layer: u32) -> Result<(), ImportError> {
        let (e, f) = (self.widths.d_model, self.widths.d_ff);
        let (from, to) = (move |rest: &str| format!("model.layers.{layer}.mlp.{rest}.weight"), blk(layer));
        match self.architecture.projections {
            Projections::Fused => {
                self.matrix(&to("ffn_up.weight"), from("gate_up_proj"), (2 * f, e), Role::Other, layer)?;
            }
            Projections::Apart => {
                self.matrix(&to("ffn_gate.weight"), from("gate_proj"), (f, e), Role::Other, layer)?;
                self.matrix(&to("ffn_up.weight"), from("up_proj"), (f, e), Role::Other, layer)?;
            }
        }
        self.matrix(&to("ffn_down.weight"), from("down_proj"), (e, f), Role::FfnDown, layer)
    }

    fn experts(&mut self, layer: u32, names: &ExpertNames, n_experts: u32) -> Result<(), ImportError> {
        let e = self.widths.d_model;
        let f = self.config.json.count(names.width_key)? as usize;
        let (from, to) = (move |rest: &str| format!("model.layers.{layer}.{rest}"), blk(layer));
        let router = from(names.router);
        self.matrix(&to("ffn_gate_inp.weight"), router, (n_experts as usize, e), Role::Exact, layer)?;
        let [gate, up, down] = names.gate_up_down;
        for (out, name, shape, role) in [
            ("ffn_gate", gate, (f, e), Role::Other),
            ("ffn_up", up, (f, e), Role::Other),
            ("ffn_down", down, (e, f), Role::FfnDown),
        ] {
            let expert = |idx| from(&format!("{}.{idx}.{name}.weight", names.experts));
            let all = (0..n_experts).map(expert).collect();
            self.stored(&to(&format!("{out}_exps.weight")), all, shape, role, layer, None)?;
            if names.shared {
                let width = self.config.json.count("shared_expert_intermediate_size")? as usize;
                let shape = if role == Role::FfnDown { (e, width) } else { (width, e) };
                let name = from(&format!("mlp.shared_expert.{name}.weight"));
                self.matrix(&to(&format!("{out}_shexp.weight")), name, shape, role, layer)?;
            }
        }
        if names.shared {
            let name = from("mlp.shared_expert_gate.weight");
            self.check_shape(&name, &[1, e])?;
            self.push(
                &to("ffn_gate_inp_shexp.weight"),
                vec![name],
                (1, e),
                vec![e as u64],
                Role::Exact,
                layer,
                None,
            );
        }
        Ok(())
    }

    /// Adds a matrix of the folder without changes.
    fn matrix(
        &mut self,
        out: &str,
        name: String,
        shape: (usize, usize),
        role: Role,
        layer: u32,
    ) -> Result<(), ImportError> {
        self.stored(out, vec![name], shape, role, layer, None)
    }

    fn stored(
        &mut self,
        out: &str,
        names: Vec<String>,
        (rows, cols): (usize, usize),
        role: Role,
        layer: u32,
        pairs_in: Option<usize>,
    ) -> Result<(), ImportError> {
        for name in &names {
            self.check_shape(name, &[rows, cols])?;
        }
        let mut dims = vec![cols as u64, rows as u64];
        if out.ends_with("_exps.weight") {
            dims.push(names.len() as u64);
        }
        self.push(out, names, (rows, cols), dims, role, layer, pairs_in);
        Ok(())
    }

    fn norm(&mut self, out: &str, name: String, len: usize) -> Result<(), ImportError> {
        self.vector(out, name, len, self.architecture.norm_offset, None)
    }

    /// Adds a vector as rows of one column, so that those of heads can be reordered to pairs.
    fn vector(
        &mut self,
        out: &str,
        name: String,
        len: usize,
        offset: f32,
        pairs_in: Option<usize>,
    ) -> Result<(), ImportError> {
        self.check_shape(&name, &[len])?;
        self.push(out, vec![name], (len, 1), vec![len as u64], Role::Exact, 0, pairs_in);
        let tensor = self.tensors.last_mut().expect("a tensor was pushed on the line above");
        if let Content::Stored { offset: added, .. } = &mut tensor.content {
            *added = offset;
        }
        Ok(())
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one planned tensor, named at the three calls"
    )]
    fn push(
        &mut self,
        out: &str,
        names: Vec<String>,
        (rows, cols): (usize, usize),
        dims: Vec<u64>,
        role: Role,
        layer: u32,
        pairs_in: Option<usize>,
    ) {
        self.used.extend(names.iter().cloned());
        let content = Content::Stored { names, rows, cols, pairs_in, offset: 0.0 };
        let format = GgmlDType::F32;
        self.tensors.push(PlannedTensor { name: out.to_owned(), dims, content, format, role, layer });
    }

    fn check_shape(&self, name: &str, want: &[usize]) -> Result<(), ImportError> {
        let stored =
            self.files.find(name).ok_or_else(|| ImportError::MissingTensor { name: name.to_owned() })?;
        if stored.shape != want {
            let (found, want) = (stored.shape.clone(), want.to_vec());
            return Err(ImportError::Shape { name: name.to_owned(), found, want });
        }
        stored.dtype(name).map(drop)
    }

    fn refuse_unknown(&self) -> Result<(), ImportError> {
        // Tables that old versions of the library saved with the weights; every program computes them itself.
        let useless = |name: &str| name.ends_with(".rotary_emb.inv_freq");
        match self.files.names().find(|name| !self.used.contains(*name) && !useless(name)) {
            Some(name) => Err(ImportError::UnknownTensor {
                name: name.to_owned(),
                architecture: self.architecture.gguf,
            }),
            None => Ok(()),
        }
    }
}

/// Returns a function that names a layer's tensors in the file.
fn blk(layer: u32) -> impl Fn(&str) -> String {
    move |rest| format!("blk.{layer}.{rest}")
}
