//! The arithmetic, written so that a result never depends on what is computed beside it.
//!
//! Every output element has a chain of fused multiply-adds of its own, in ascending order of the inner dimension, or a
//! fixed tree over eight lanes. Tiles, batches, chunks and threads only decide *when* a chain is computed. Fused
//! multiply-adds are exact in IEEE-754, so the widths of the machine's vectors do not matter either.
//!
//! The loops are plain Rust over fixed-size arrays; [`pulp`] compiles them once per instruction set and chooses at run
//! time ([`wide`]). For that everything below must be inlined: hence `inline(always)`, structs instead of closures, and
//! loops instead of adaptors that take closures. Code that is not inlined calls a library function for each
//! multiply-add and is a thousand times slower; `engine_speed` shows it. (On x86 processors older than 2013, without FMA, they are correct but very slow.)

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

/// Output columns per panel of a packed matrix: two vectors of eight.
pub(super) const PANEL: usize = 16;
/// Rows per tile: with [`PANEL`] columns they fill the registers of AVX2.
const TILE: usize = 6;
/// Rows that are computed together have at most about this many bytes: half of a usual second-level cache.
const BLOCK_BYTES: usize = 256 << 10;

/// A loop that is to be compiled for the machine's vectors. `run` must be `inline(always)`.
pub(super) trait Kernel {
    /// Runs it.
    fn run<S: Simd>(self, simd: S);
}

struct Wide<K>(K);

impl<K: Kernel> WithSimd for Wide<K> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        self.0.run(simd);
    }
}

/// Runs a loop with the best vectors that this machine has.
pub(super) fn wide(kernel: impl Kernel) {
    pulp::Arch::new().dispatch(Wide(kernel));
}

/// A weight matrix of `n` outputs by `k` inputs, in panels: `[n / 16][k][16]`, the last one padded with zeros.
pub(super) struct Packed {
    pub(super) n: usize,
    pub(super) k: usize,
    data: Vec<f32>,
}

impl Packed {
    /// Packs row-major parts (each `rows × k`) one below the other.
    pub(super) fn new(k: usize, parts: &[&[f32]]) -> Self {
        let k = k.max(1);
        let rows: Vec<&[f32]> = parts.iter().flat_map(|part| part.chunks_exact(k)).collect();
        let n = rows.len();
        let mut data = vec![0.0; n.div_ceil(PANEL) * PANEL * k];
        data.par_chunks_exact_mut(PANEL * k)
            .zip(rows.par_chunks(PANEL))
            .for_each(|(panel, rows)| {
                for (lane, row) in rows.iter().enumerate() {
                    for (slot, value) in panel.iter_mut().skip(lane).step_by(PANEL).zip(row.iter()) {
                        *slot = *value;
                    }
                }
            });
        Self { n, k, data }
    }

    /// Reads one row back (the embedding of a token).
    pub(super) fn row(&self, row: usize, out: &mut [f32]) {
        let start = row / PANEL * PANEL * self.k + row % PANEL;
        for (value, slot) in out.iter_mut().zip(self.data[start..].iter().step_by(PANEL)) {
            *value = *slot;
        }
    }
}

/// `out = x · wᵀ` for `m` rows of `x`; `out` is `m × n`, row-major.
///
/// Weights are shared out over threads, for as many rows at a time as stay in a core's cache: reading the weights from
/// memory is most of the work, so it is done as seldom as possible.
pub(super) fn matmul(x: &[f32], w: &Packed, out: &mut [f32]) {
    let block = (BLOCK_BYTES / size_of::<f32>() / w.k).next_multiple_of(TILE);
    for (x, out) in x.chunks(block * w.k).zip(out.chunks_mut(block * w.n)) {
        matmul_block(x, w, out);
    }
}

fn matmul_block(x: &[f32], w: &Packed, out: &mut [f32]) {
    let m = x.len() / w.k;
    let tiles: Vec<_> = x.chunks(TILE * w.k).map(|rows| interleave(rows, w.k)).collect();
    let count = w.n.div_ceil(PANEL);
    // A panel's results lie together at first, so that each task has a stretch of its own.
    let mut panels = vec![0.0f32; count * PANEL * m];
    let share = count.div_ceil(4 * rayon::current_num_threads().max(1));
    let tasks = panels
        .par_chunks_mut(share * PANEL * m)
        .zip(w.data.par_chunks(share * PANEL * w.k));
    tasks.for_each(|(out, data)| {
        wide(ByPanels {
            tiles: &tiles,
            m,
            k: w.k,
            data,
            out,
        })
    });
    out.par_chunks_exact_mut(w.n)
        .with_min_len(16)
        .enumerate()
        .for_each(|(row, out)| {
            for (out, panel) in out.chunks_mut(PANEL).zip(panels.chunks_exact(PANEL * m)) {
                out.copy_from_slice(&panel[row * PANEL..row * PANEL + out.len()]);
            }
        });
}

/// Rows against some panels; results panel by panel.
struct ByPanels<'a> {
    tiles: &'a [Vec<f32>],
    m: usize,
    k: usize,
    data: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for ByPanels<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let panels = self.data.chunks_exact(PANEL * self.k);
        for (panel, out) in panels.zip(self.out.chunks_exact_mut(PANEL * self.m)) {
            for (tile, out) in self.tiles.iter().zip(out.chunks_mut(TILE * PANEL)) {
                any_tile(simd, tile, panel, out);
            }
        }
    }
}

/// Rows side by side, as a tile reads them: `[k][rows]`.
#[inline(always)]
fn interleave(rows: &[f32], k: usize) -> Vec<f32> {
    let m = rows.len() / k;
    let mut out = vec![0.0; rows.len()];
    for (row, values) in rows.chunks_exact(k).enumerate() {
        for (slot, value) in out.iter_mut().skip(row).step_by(m).zip(values) {
            *slot = *value;
        }
    }
    out
}

/// As many rows as the tile has, against one panel; `out` is `rows × 16`.
#[inline(always)]
fn any_tile<S: Simd>(simd: S, x: &[f32], panel: &[f32], out: &mut [f32]) {
    match x.len() * PANEL / panel.len() {
        1 => sized_tile::<S, 1>(simd, x, panel, out),
        2 => sized_tile::<S, 2>(simd, x, panel, out),
        3 => sized_tile::<S, 3>(simd, x, panel, out),
        4 => sized_tile::<S, 4>(simd, x, panel, out),
        5 => sized_tile::<S, 5>(simd, x, panel, out),
        _ => sized_tile::<S, TILE>(simd, x, panel, out),
    }
}

/// A panel is one vector or several, as wide as the machine has them.
#[inline(always)]
fn sized_tile<S: Simd, const M: usize>(simd: S, x: &[f32], panel: &[f32], out: &mut [f32]) {
    match PANEL / S::F32_LANES {
        1 => tile::<S, M, 1>(simd, x, panel, out),
        2 => tile::<S, M, 2>(simd, x, panel, out),
        4 => tile::<S, M, 4>(simd, x, panel, out),
        _ => tile::<S, M, PANEL>(simd, x, panel, out),
    }
}

/// `M` rows against one panel of `V` vectors: `M × 16` chains side by side. Vectors are spelled out here, because the
/// sums must stay in registers.
#[inline(always)]
fn tile<S: Simd, const M: usize, const V: usize>(simd: S, x: &[f32], panel: &[f32], out: &mut [f32]) {
    let mut sums = [[simd.splat_f32s(0.0); V]; M];
    let (x, _) = x.as_chunks::<M>();
    let (vectors, _) = S::as_simd_f32s(panel);
    let (vectors, _) = vectors.as_chunks::<V>();
    for (x, w) in x.iter().zip(vectors) {
        for row in 0..M {
            let x = simd.splat_f32s(x[row]);
            for vector in 0..V {
                sums[row][vector] = simd.mul_add_f32s(x, w[vector], sums[row][vector]);
            }
        }
    }
    // Vector by vector: whoever takes the sums' address makes the loop above store them in every round.
    let (out, _) = S::as_mut_simd_f32s(out);
    for row in 0..M {
        for vector in 0..V {
            out[row * V + vector] = sums[row][vector];
        }
    }
}

/// Eight lanes to one number, always in the same order.
#[inline(always)]
pub(super) fn reduce(l: &[f32; 8]) -> f32 {
    ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]))
}

/// The dot product of two vectors whose length is a multiple of eight.
#[inline(always)]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 8];
    let ((a, _), (b, _)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    for (a, b) in a.iter().zip(b) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane = a.mul_add(*b, *lane);
        }
    }
    reduce(&lanes)
}

/// `e^x`, to about one unit in the last place; the same on every machine, and free of branches.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 × 2²³: adding it rounds to an integer in the low bits
    let x = x.clamp(-87.0, 88.0);
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    // ln 2 in two parts, so that the reduced argument is exact.
    let r = n.mul_add(-1.428_606_8e-6, n.mul_add(-0.693_145_75, x));
    let mut p = 1.987_569_1e-4f32;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p.mul_add(r, c);
    }
    let p = p.mul_add(r * r, r) + 1.0;
    let power = f32::from_bits(shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23);
    p * power
}

/// Scales `x` to unit mean square and weighs it, into `out`.
pub(super) fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    wide(Norm {
        x,
        weight,
        epsilon,
        out,
    });
}

struct Norm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    epsilon: f32,
    out: &'a mut [f32],
}

impl Kernel for Norm<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let width = self.weight.len();
        for (x, out) in self.x.chunks_exact(width).zip(self.out.chunks_exact_mut(width)) {
            let scale = 1.0 / (dot(x, x) / width as f32 + self.epsilon).sqrt();
            for ((out, x), weight) in out.iter_mut().zip(x).zip(self.weight) {
                *out = x * scale * weight;
            }
        }
    }
}

/// `silu(gate) × up` for rows that hold both halves, into `out`.
pub(super) fn gated(rows: &[f32], width: usize, out: &mut [f32]) {
    let each = rows
        .par_chunks(2 * width)
        .zip(out.par_chunks_mut(width))
        .with_min_len(8);
    each.for_each(|(row, out)| wide(Gated { row, out }));
}

struct Gated<'a> {
    row: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Gated<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let (gate, up) = self.row.split_at(self.out.len());
        for ((out, gate), up) in self.out.iter_mut().zip(gate).zip(up) {
            *out = gate / (1.0 + exp(-gate)) * up;
        }
    }
}

/// `x += y`.
pub(super) fn add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::uniform;

    fn noise(len: usize, seed: u64) -> Vec<f32> {
        (0..len as u64).map(|at| uniform(seed, at) as f32 - 0.5).collect()
    }

    #[test]
    fn a_row_is_the_same_bits_in_any_batch_on_any_number_of_threads() {
        for (n, k) in [(40, 64), (576, 96), (50, 200)] {
            let rows = noise(n * k, 1);
            let (upper, lower) = rows.split_at(k * (n / 3));
            let w = Packed::new(k, &[upper, lower]);
            let x = noise(331 * k, 2);
            let run = |x: &[f32]| {
                let mut out = vec![0.0; x.len() / k * n];
                matmul(x, &w, &mut out);
                out
            };
            let all = run(&x);
            for batch in (1..=30).chain([97, 200]) {
                let parts: Vec<f32> = x.chunks(batch * k).flat_map(run).collect();
                assert!(
                    parts.iter().zip(&all).all(|(a, b)| a.to_bits() == b.to_bits()),
                    "batches of {batch}"
                );
            }
            let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().expect("a pool");
            assert_eq!(pool.install(|| run(&x)), all);
            let expected: f64 = (0..k).map(|at| f64::from(x[at]) * f64::from(rows[k + at])).sum();
            assert!((f64::from(all[1]) - expected).abs() < 1e-4);
            let mut back = vec![0.0; k];
            w.row(n - 1, &mut back);
            assert_eq!(back, rows[(n - 1) * k..]);
        }
    }

    #[test]
    fn exp_is_exp() {
        for at in -8_600..8_700 {
            let x = at as f32 / 100.0;
            let (mine, exact) = (f64::from(exp(x)), f64::from(x).exp());
            assert!((mine / exact - 1.0).abs() < 3e-7, "e^{x}: {mine} {exact}");
        }
        assert!(exp(-1e30) < 1e-37 && exp(f32::NEG_INFINITY) < 1e-37);
        assert!(exp(1e30).is_finite());
    }
}
