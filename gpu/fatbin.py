#!/usr/bin/env python3
"""Compiles kernels.cu for all targets, and writes the result as a C file that holds its bytes.

    fatbin.py NVCC SOURCE_ROOT KERNELS.CU OUT.C OUT.TXT

Prints the registers of each kernel on each target, and fails where one of them spills or where one
that gpu/kernels.h names is missing. OUT.TXT gets the same table.
"""

import re
import subprocess
import sys
from pathlib import Path

TARGETS = ("80", "90", "100")
PTX = "80"  # for every device that none of the targets is for


def compile_all(nvcc: str, root: str, source: str, fatbin: Path) -> str:
    """What ptxas says on the way."""
    command = [nvcc, "-fatbin", "-std=c++17", "-O3", "-fmad=false", "-I", root, "-Xptxas", "-v",
               "-Werror", "all-warnings", "--threads", "2"]
    for target in TARGETS:
        command += ["-gencode", f"arch=compute_{target},code=sm_{target}"]
    command += ["-gencode", f"arch=compute_{PTX},code=compute_{PTX}", source, "-o", str(fatbin)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False)
    if done.returncode != 0:
        sys.exit(done.stdout)
    return done.stdout


def table_of(said: str, names: list[str]) -> tuple[str, bool]:
    """Registers by kernel and target; whether all is well."""
    registers: dict[tuple[str, str], int] = {}
    spilled: dict[tuple[str, str], int] = {}
    key = ("", "")
    for line in said.splitlines():
        if m := re.search(r"Compiling entry function '(\w+)' for 'sm_(\d+)'", line):
            key = (m[1], m[2])
        elif m := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spilled[key] = spilled.get(key, 0) + int(m[1]) + int(m[2])
        elif m := re.search(r"Used (\d+) registers", line):
            registers[key] = int(m[1])
    head = "kernels: registers per thread, bytes spilled"
    lines = [head + "".join(f"{'sm_' + t:>12}" for t in TARGETS)]
    fine = True
    for name in names:
        line = f"    {name:40}"
        for target in TARGETS:
            key = (name, target)
            if key not in registers or key not in spilled:
                line += f"{'missing':>12}"
                fine = False
                continue
            line += f"{registers[key]:>9}, {spilled[key]}"
            fine = fine and spilled[key] == 0
        lines.append(line)
    return "\n".join(lines) + "\n", fine


def as_c(data: bytes) -> str:
    """Eight bytes to a word, which also aligns them."""
    data += bytes(-len(data) % 8)
    words = [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]
    rows = (", ".join(f"0x{w:016x}" for w in words[i : i + 4]) for i in range(0, len(words), 4))
    return (
        "/* Made by gpu/fatbin.py from gpu/kernels.cu. */\n"
        '#include "gpu/fatbin.h"\n\n'
        f"static const uint64_t image[] = {{\n\t" + ",\n\t".join(rows) + ",\n};\n\n"
        "const void *const gpu_fatbin = image;\n"
        "const uint64_t gpu_fatbin_len = sizeof(image);\n"
    )


def main() -> None:
    nvcc, root, source, out, text = sys.argv[1:]
    fatbin = Path(out).with_suffix(".fatbin")
    contract = (Path(root) / "gpu/kernels.h").read_text(encoding="utf-8")
    names = re.findall(r"X\((gpu_kernel_\w+)\)", contract)
    table, fine = table_of(compile_all(nvcc, root, source, fatbin), names)
    sys.stdout.write(table)
    if not fine:
        sys.exit("kernels: a kernel spills or is missing")
    Path(out).write_text(as_c(fatbin.read_bytes()), encoding="ascii")
    Path(text).write_text(table, encoding="ascii")


if __name__ == "__main__":
    main()
