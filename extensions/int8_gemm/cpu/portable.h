// The parts that are not of one instruction set, in the order in which they use each other. They
// have no guards and no namespace: every unit has its own copy of them, compiled with its flags.

// clang-format off
#include "lanes.h"
#include "credit_isa.h"
#include "portable_isa.h"
#include "learn_isa.h"
#include "rules_isa.h"
#include "epilogue.h"
#include "amx_isa.h"
// clang-format on
