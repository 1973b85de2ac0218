"""What SASS instructions do, told from their opcodes: kinds, and bytes that a thread moves."""

from __future__ import annotations

from tunefarm.bench.listing import Instruction

TENSOR, TMA = "tensor instructions", "TMA"
GLOBAL_LOAD, GLOBAL_STORE, ASYNC_COPY = "global loads", "global stores", "asynchronous copies"
LOCAL_LOAD, LOCAL_STORE = "local loads", "local stores"
OTHER = "other"

_KINDS: dict[str, str] = {
    TENSOR: """HMMA IMMA DMMA BMMA QMMA OMMA HGMMA IGMMA QGMMA BGMMA UTCHMMA UTCIMMA UTCQMMA UTCOMMA""",
    TMA: """UTMALDG UTMASTG UTMAREDG UTMAPF UTMACMDFLUSH UTMACCTL UBLKCP UBLKRED UBLKPF""",
    GLOBAL_LOAD: """LDG LD""",
    GLOBAL_STORE: """STG ST""",
    ASYNC_COPY: """LDGSTS""",
    LOCAL_LOAD: """LDL""",
    LOCAL_STORE: """STL""",
    "atomics": """ATOM ATOMG ATOMS RED REDG REDAS""",
    "shared loads": """LDS LDSM""",
    "shared stores": """STS STSM""",
    "tensor memory": """LDTM STTM UTCCP UTCATOMSWS UTCBAR""",
    "constant loads": """LDC LDCU ULDC""",
    "floating point": """FADD FMUL FFMA FMNMX FMNMX3 FSEL FSET FSETP FCHK FSWZADD FADD2 FMUL2 FFMA2 FADD32I FMUL32I
        FFMA32I HADD2 HMUL2 HFMA2 HMNMX2 HSET2 HSETP2 HADD2_32I HMUL2_32I HFMA2_32I DADD DMUL DFMA DSETP UFADD UFMUL
        UFFMA UFSETP""",
    "special functions": """MUFU""",
    "conversions": """F2F F2FP F2I F2IP I2F I2FP I2I I2IP FRND UF2F UF2FP UI2F UI2FP""",
    "integer": """IADD IADD3 IADD32I IMAD IMAD32I IMUL IABS IMNMX VIADD VIMNMX VIMNMX3 VIADDMNMX VABSDIFF VABSDIFF4
        ISETP ISCADD LEA LOP LOP3 LOP32I SHF SHL SHR SGXT BMSK BREV FLO POPC IDP IDP4A PLOP3""",
    "moves": """MOV MOV32I SEL PRMT S2R CS2R S2UR R2UR P2R R2P R2B B2R MOVM LEPC""",
    "between threads": """SHFL REDUX CREDUX VOTE VOTEU MATCH ELECT""",
    "synchronization": """BAR SYNCS DEPBAR LDGDEPBAR MEMBAR FENCE ERRBAR CCTL CCTLL WARPSYNC WARPGROUP WARPGROUPSET
        NANOSLEEP BSSY BSYNC BREAK BMOV ARRIVES UCGABAR_ARV UCGABAR_WAIT ACQBULK ACQSHMINIT USETMAXREG PREEXIT YIELD""",
    "control": """BRA BRX BRXU JMP JMX JMXU EXIT RET CALL KILL BPT RPCMOV""",
}
_KIND = {root: kind for kind, roots in _KINDS.items() for root in roots.split()}
_UNIFORM = "uniform"
"""What is computed once for a warp; opcodes of that datapath begin with a U."""

_SIZES = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}
_WORD = 4


def kind(instruction: Instruction) -> str:
    """What an instruction does, in a word for tables; `other` for an opcode that is not known."""
    root = instruction.parts[0]
    return _KIND.get(root) or (_UNIFORM if root.startswith("U") else OTHER)


def thread_bytes(instruction: Instruction) -> int:
    """Bytes that a thread moves by a load, a store or a copy."""
    return next((_SIZES[part] for part in instruction.parts[1:] if part in _SIZES), _WORD)
