// Instructions for functions of fast maths: none on the CPU, whose functions must vectorise.
#ifndef SOFTMETAL_TARGET_MATHS_H
#define SOFTMETAL_TARGET_MATHS_H
#endif
