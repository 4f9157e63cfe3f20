"""Writes a GGUF file with all weights as f32, by the `gguf` package: what a quantized model stands for.

    python dequantize.py FROM TO
"""

import sys

import gguf


def main() -> None:
    reader = gguf.GGUFReader(sys.argv[1])
    architecture = reader.get_field("general.architecture").contents()
    writer = gguf.GGUFWriter(sys.argv[2], architecture, endianess=reader.endianess)
    for field in reader.fields.values():
        # The writer sets the architecture, and the numbers of the header are no metadata.
        if field.name == "general.architecture" or field.name.startswith("GGUF."):
            continue
        kind = field.types[0]
        part = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=part)
    for tensor in reader.tensors:
        weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        shape = [int(n) for n in reversed(tensor.shape)]
        writer.add_tensor(tensor.name, weights.astype("float32").reshape(shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
