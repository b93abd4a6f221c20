/* Metal: what softmetal/native/headers.py writes from the table of signatures. */
#pragma once

#import <SoftmetalMetal.h>
