//! A model's weights, read from a GGUF file and packed for the kernels.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;

use candle_core::Device;
use candle_core::quantized::gguf_file::{Content, Value};

use super::kernel::Packed;

/// Why a model file is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeightsError {
    /// The file could not be read.
    #[error("the model file {path} could not be read: {cause}")]
    Read {
        /// Which file.
        path: String,
        /// What went wrong.
        cause: String,
    },
    /// It is not a model of the Llama architecture, or not one that the embedded engine computes.
    #[error("the model file {path} does not fit the embedded engine: {cause}")]
    Unfit {
        /// Which file.
        path: String,
        /// What does not fit.
        cause: String,
    },
}

/// The sizes of a Llama model.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// The model's name, lower case, with hyphens.
    pub name: String,
    /// Transformer blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Width of the feed-forward layer.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key-value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Ids are below this.
    pub vocabulary: usize,
    /// Longest sequence in tokens.
    pub context: usize,
    /// Base of the rotary embedding's wavelengths.
    pub rope_base: f32,
    /// Added to the mean square before its root.
    pub epsilon: f32,
}

impl Shape {
    /// Width of the keys (or values) of one layer.
    #[must_use]
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Layers whose KV lies together in one slab: a fifth of them, or another divisor.
    #[must_use]
    pub fn group_layers(&self) -> usize {
        let groups = [5, 6, 4, 7, 3, 2]
            .into_iter()
            .find(|groups| self.layers.is_multiple_of(*groups))
            .unwrap_or(1);
        (self.layers / groups).max(1)
    }

    /// Layer groups: slabs per page.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.layers / self.group_layers()
    }
}

/// One transformer block.
pub(super) struct Block {
    pub(super) attention_norm: Vec<f32>,
    /// Queries, keys and values in one.
    pub(super) qkv: Packed,
    pub(super) output: Packed,
    pub(super) ffn_norm: Vec<f32>,
    /// Gate and up in one.
    pub(super) gate_up: Packed,
    pub(super) down: Packed,
}

/// A model's weights in f32. Engines in one process share them.
pub struct Weights {
    pub(super) shape: Shape,
    pub(super) embedding: Packed,
    /// `None` if the embedding serves as the output matrix too.
    pub(super) head: Option<Packed>,
    pub(super) blocks: Vec<Block>,
    pub(super) norm: Vec<f32>,
    /// Cosines and sines by position: `context × head_dim / 2` pairs.
    pub(super) rotations: Vec<(f32, f32)>,
}

impl Weights {
    /// Loads a GGUF file of the Llama architecture; quantized weights become f32. `progress` hears 0 to 1. Takes a
    /// second or two for SmolLM2-135M, and about 540 MB.
    ///
    /// # Errors
    /// [`WeightsError`].
    pub fn load(path: &Path, progress: &dyn Fn(f32)) -> Result<Arc<Self>, WeightsError> {
        let (shape, mut reader) = open(path)?;
        let loaded = reader.load(shape, progress).map(Arc::new);
        loaded.map_err(|cause| unfit(path, cause))
    }

    /// The model's sizes.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(super) fn head(&self) -> &Packed {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}

impl Shape {
    /// Reads a model's sizes from its GGUF file, and nothing else of it.
    ///
    /// # Errors
    /// [`WeightsError`].
    pub fn read(path: &Path) -> Result<Self, WeightsError> {
        open(path).map(|(shape, _)| shape)
    }
}

fn open(path: &Path) -> Result<(Shape, Reader), WeightsError> {
    let read = |error: &dyn std::fmt::Display| WeightsError::Read {
        path: path.display().to_string(),
        cause: error.to_string(),
    };
    let file = File::open(path).map_err(|error| read(&error))?;
    let mut file = BufReader::with_capacity(1 << 20, file);
    let content = Content::read(&mut file).map_err(|error| read(&error))?;
    let shape = shape(&content).map_err(|cause| unfit(path, cause))?;
    Ok((shape, Reader { content, file }))
}

fn unfit(path: &Path, cause: String) -> WeightsError {
    WeightsError::Unfit {
        path: path.display().to_string(),
        cause,
    }
}

fn shape(content: &Content) -> Result<Shape, String> {
    let text = |key: &str| content.metadata.get(key).and_then(|value| value.to_string().ok());
    let architecture = text("general.architecture").map_or("", String::as_str);
    if architecture != "llama" {
        return Err(format!("its architecture is `{architecture}`, not `llama`"));
    }
    let value = |key: &str| content.metadata.get(&format!("llama.{key}"));
    let whole = |key: &str| {
        let number = value(key).and_then(|value| value.to_u32().ok());
        number
            .map(|number| number as usize)
            .ok_or_else(|| format!("`llama.{key}` is missing"))
    };
    let real = |key: &str| value(key).and_then(|value: &Value| value.to_f32().ok());
    let embedding = content
        .tensor_infos
        .get("token_embd.weight")
        .ok_or("it has no `token_embd.weight`")?;
    let (vocabulary, width) = embedding.shape.dims2().map_err(|error| error.to_string())?;
    let heads = whole("attention.head_count")?;
    let shape = Shape {
        name: text("general.name")
            .map_or("llama", String::as_str)
            .to_lowercase()
            .replace([' ', '_'], "-"),
        layers: whole("block_count")?,
        width,
        hidden: whole("feed_forward_length")?,
        heads,
        kv_heads: whole("attention.head_count_kv").unwrap_or(heads),
        head_dim: width / heads.max(1),
        vocabulary,
        context: whole("context_length")?.min(32_768),
        rope_base: real("rope.freq_base").unwrap_or(10_000.0),
        epsilon: real("attention.layer_norm_rms_epsilon").unwrap_or(1e-5),
    };
    check(&shape)?;
    match whole("rope.dimension_count") {
        Ok(turned) if turned != shape.head_dim => Err(format!("it rotates {turned} of {} dimensions", shape.head_dim)),
        _ if value("rope.scaling.type").is_some_and(|kind| kind.to_string().is_ok_and(|kind| kind != "none")) => {
            Err("it scales its rotary embedding".to_owned())
        }
        _ => Ok(shape),
    }
}

fn check(shape: &Shape) -> Result<(), String> {
    let sizes = [
        shape.layers,
        shape.width,
        shape.hidden,
        shape.kv_heads,
        shape.vocabulary,
        shape.context,
    ];
    let fits = sizes.iter().all(|size| (1..=1 << 20).contains(size))
        && shape.heads.is_multiple_of(shape.kv_heads)
        && shape.head_dim * shape.heads == shape.width
        && shape.head_dim.is_multiple_of(16); // whole vectors on every machine
    if fits {
        Ok(())
    } else {
        Err(format!(
            "its sizes are not those of a model that can be computed: {shape:?}"
        ))
    }
}

struct Reader {
    content: Content,
    file: BufReader<File>,
}

impl Reader {
    fn load(&mut self, shape: Shape, progress: &dyn Fn(f32)) -> Result<Weights, String> {
        progress(0.0);
        let steps = shape.layers as f32 + 3.0;
        let embedding = self.tensor("token_embd.weight", &[shape.vocabulary, shape.width])?;
        let embedding = Packed::new(shape.width, &[&embedding]);
        progress(2.0 / steps);
        let mut blocks = Vec::with_capacity(shape.layers);
        for layer in 0..shape.layers {
            blocks.push(self.block(&shape, layer)?);
            progress((layer as f32 + 3.0) / steps);
        }
        let head = match self.content.tensor_infos.contains_key("output.weight") {
            true => Some(Packed::new(
                shape.width,
                &[&self.tensor("output.weight", &[shape.vocabulary, shape.width])?],
            )),
            false => None,
        };
        let norm = self.tensor("output_norm.weight", &[shape.width])?;
        let rotations = rotations(&shape);
        progress(1.0);
        Ok(Weights {
            shape,
            embedding,
            head,
            blocks,
            norm,
            rotations,
        })
    }

    fn block(&mut self, shape: &Shape, layer: usize) -> Result<Block, String> {
        let (width, kv, hidden) = (shape.width, shape.kv_width(), shape.hidden);
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let q = self.tensor(&name("attn_q"), &[width, width])?;
        let k = self.tensor(&name("attn_k"), &[kv, width])?;
        let v = self.tensor(&name("attn_v"), &[kv, width])?;
        let output = self.tensor(&name("attn_output"), &[width, width])?;
        let gate = self.tensor(&name("ffn_gate"), &[hidden, width])?;
        let up = self.tensor(&name("ffn_up"), &[hidden, width])?;
        let down = self.tensor(&name("ffn_down"), &[width, hidden])?;
        Ok(Block {
            attention_norm: self.tensor(&name("attn_norm"), &[width])?,
            qkv: Packed::new(width, &[&q, &k, &v]),
            output: Packed::new(width, &[&output]),
            ffn_norm: self.tensor(&name("ffn_norm"), &[width])?,
            gate_up: Packed::new(width, &[&gate, &up]),
            down: Packed::new(hidden, &[&down]),
        })
    }

    fn tensor(&mut self, name: &str, dims: &[usize]) -> Result<Vec<f32>, String> {
        let read = |error: candle_core::Error| format!("`{name}`: {error}");
        let tensor = self.content.tensor(&mut self.file, name, &Device::Cpu).map_err(read)?;
        if tensor.shape().dims() != dims {
            return Err(format!("`{name}` is {:?}, not {dims:?}", tensor.shape().dims()));
        }
        let values = tensor
            .dequantize(&Device::Cpu)
            .and_then(|tensor| tensor.flatten_all())
            .map_err(read)?;
        values.to_vec1().map_err(read)
    }
}

fn rotations(shape: &Shape) -> Vec<(f32, f32)> {
    let half = shape.head_dim / 2;
    let turn = |at: usize| {
        let (position, pair) = ((at / half) as f64, (at % half) as f64);
        let angle = position / f64::from(shape.rope_base).powf(2.0 * pair / shape.head_dim as f64);
        (angle.cos() as f32, angle.sin() as f32)
    };
    (0..shape.context * half).map(turn).collect()
}
