// What units are made of that is not of one instruction set, in the order in which parts use each
// other. Such parts have no guards: each unit has its own copy, compiled with its flags, inside its
// namespace.

// clang-format off
#include "lanes.h"
#include "credit_isa.h"
#include "portable_isa.h"
#include "learn_isa.h"
#include "rules_isa.h"
#include "epilogue.h"
#include "amx_isa.h"
// clang-format on
