//! Launches of the kernels of a mixture: the choice of experts, products with those chosen, and their sum.
//!
//! A pair is a token with one of its chosen experts. Pairs are numbered token by token, in the order of the
//! experts' ids.

use baton_kernels_cpu::{Gating, Routing};

use super::{Input, each, flat, words};
use crate::device::{Buffer, Device, Launch};
use crate::kernel::Kernel;
use crate::matrix::Quantized;
use crate::stack::DeviceStack;

/// Chooses the experts of `t` tokens by their router's numbers, `[t, count]`. Returns id and bits of the
/// factor of each pair, `[t, used, 2]`. Without a bias of the choice or factors of experts there is no
/// buffer.
pub fn route(
    device: &dyn Device,
    x: &Buffer,
    (t, count): (usize, usize),
    routing: &Routing,
    (bias, own): (Option<&Buffer>, Option<&Buffer>),
) -> Buffer {
    let routes = device.alloc(words(2 * t * routing.used).max(4));
    if t == 0 {
        return routes;
    }
    let gating = match routing.gating {
        Gating::Softmax => 0,
        Gating::Sigmoid => 1,
        Gating::ChosenSoftmax => 2,
    };
    let groups = routing.groups.map_or([0; 2], |groups| [groups.count as u32, groups.used as u32]);
    let params = [
        t as u32,
        count as u32,
        routing.used as u32,
        gating,
        groups[0],
        groups[1],
        u32::from(routing.normalized),
        routing.scale.to_bits(),
        u32::from(bias.is_some()),
        u32::from(own.is_some()),
    ];
    let nothing = device.alloc(4);
    let work = device.alloc(words(4 * t * count));
    let buffers = &[x, bias.unwrap_or(&nothing), own.unwrap_or(&nothing), &work, &routes];
    device.launch(&Launch { kernel: Kernel::Route, groups: flat(t), params: &params, buffers });
    routes
}

/// Which matrix of a stack a pair takes: number `each id + at`.
#[derive(Debug, Clone, Copy)]
pub struct Chosen<'a> {
    /// The matrices.
    pub stack: &'a DeviceStack,
    /// Matrices of an expert.
    pub each: usize,
    /// The one that is used.
    pub at: usize,
}

/// Sets `out = x w^T`, `[pairs, rows]`, with the matrix `w` of each pair. Pair `p` has activation row
/// `p / used`.
///
/// # Panics
/// If the input is not of the kind that the format needs.
pub fn matmul_chosen(
    device: &dyn Device,
    chosen: Chosen<'_>,
    (routes, pairs, used): (&Buffer, usize, usize),
    x: Input<'_>,
    out: &Buffer,
) {
    let Chosen { stack, each, at } = chosen;
    let is_float = stack.format.block_len() == 1;
    let [x_groups, y_groups, _] = flat(stack.rows.div_ceil(device.tiles().matvec_rows as usize));
    let kernel = Kernel::MatVecChosen { format: stack.format };
    let chunks = if pairs > 0 { stack.chunks.as_slice() } else { &[] };
    for chunk in chunks {
        let params = [stack.rows, stack.cols, pairs, used, each, at, chunk.first, chunk.held];
        let mut params: Vec<u32> = params.into_iter().map(|n| n as u32).collect();
        params.push((stack.stride / 4) as u32);
        let mut buffers = vec![&chunk.buffer, routes];
        match x {
            Input::Quantized(Quantized { q, scale, sums }) if !is_float => buffers.extend([q, scale, sums]),
            Input::Floats(x) if is_float => buffers.push(x),
            _ => panic!("activations of another kind than {} takes", stack.format.name()),
        }
        buffers.push(out);
        let groups = [x_groups, y_groups, pairs as u32];
        device.launch(&Launch { kernel, groups, params: &params, buffers: &buffers });
    }
}

/// Adds the biases of each pair's expert, of `bias` `[experts, width]`, to its row of `[pairs, width]`.
pub fn add_chosen_bias(
    device: &dyn Device,
    x: &Buffer,
    bias: &Buffer,
    routes: &Buffer,
    (pairs, width): (usize, usize),
) {
    each(device, Kernel::AddChosenBias, pairs * width, &[width as u32], &[x, bias, routes]);
}

/// Adds each pair's row of `y`, `[t used, width]`, times its factor to its token's row of `x`.
pub fn add_chosen(
    device: &dyn Device,
    x: &Buffer,
    y: &Buffer,
    (routes, used): (&Buffer, usize),
    (t, width): (usize, usize),
) {
    each(device, Kernel::AddChosen, t * width, &[width as u32, used as u32], &[x, y, routes]);
}
