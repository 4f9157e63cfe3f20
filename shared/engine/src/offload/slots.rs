//! Memory of the GPU that units are loaded into, one after the other.

use baton_kernels_gpu::{Buffer, Device, DeviceMatrix, Piece};

use super::units::Unit;

/// The buffers of a slot: of each matrix's place in a unit, those of its pieces.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    buffers: Vec<Vec<Buffer>>,
}

/// The sizes of the buffers of slots, large enough for each of some units.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SlotShape(Vec<Vec<u64>>);

impl SlotShape {
    /// Makes room for another unit.
    pub(super) fn include(&mut self, pieces: &[Vec<Piece>]) {
        let Self(sizes) = self;
        sizes.resize_with(sizes.len().max(pieces.len()), Vec::new);
        for (sizes, pieces) in sizes.iter_mut().zip(pieces) {
            sizes.resize(sizes.len().max(pieces.len()), 0);
            for (size, piece) in sizes.iter_mut().zip(pieces) {
                *size = piece.buffer_bytes().max(*size);
            }
        }
    }

    /// Returns the bytes of a slot.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().flatten().sum()
    }

    /// Allocates a slot. If there is no room, the device keeps the fault.
    pub(super) fn slot(&self, device: &dyn Device) -> Slot {
        let buffers = |sizes: &Vec<u64>| sizes.iter().map(|bytes| device.alloc(*bytes)).collect();
        Slot { buffers: self.0.iter().map(buffers).collect() }
    }
}

impl Slot {
    /// Returns the buffer of a piece of a matrix.
    pub(super) fn buffer(&self, matrix: usize, piece: usize) -> &Buffer {
        &self.buffers[matrix][piece]
    }

    /// Returns the unit's matrices, as they are in the slot after the unit was loaded.
    pub(super) fn matrices(&self, unit: &Unit, pieces: &[Vec<Piece>]) -> Vec<DeviceMatrix> {
        let matrix = |(at, pieces): (usize, &Vec<Piece>)| {
            let place = &unit.matrices[at];
            let held =
                pieces.iter().enumerate().map(|(n, piece)| (self.buffer(at, n).clone(), piece.clone()));
            DeviceMatrix::over(held, (place.format, place.rows, place.cols))
        };
        pieces.iter().enumerate().map(matrix).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_holds_every_unit() {
        let piece = |bytes: usize| Piece { rows: 0..1, bytes: 0..bytes };
        let mut shape = SlotShape::default();
        shape.include(&[vec![piece(40), piece(10)], vec![piece(8)]]);
        shape.include(&[vec![piece(12)], vec![piece(9)], vec![piece(2)]]);
        assert_eq!(shape, SlotShape(vec![vec![40, 12], vec![12], vec![4]]));
        assert_eq!(shape.bytes(), 68);
    }
}
