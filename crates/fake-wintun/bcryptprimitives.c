/* What Rust's standard library needs of bcryptprimitives.dll, which Wine before 9 does not have. */
#include <windows.h>

BOOLEAN WINAPI SystemFunction036(PVOID, ULONG); /* RtlGenRandom of advapi32.dll */

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T len)
{
    return SystemFunction036(data, (ULONG)len);
}
