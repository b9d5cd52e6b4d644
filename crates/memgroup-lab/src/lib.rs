//! The experiments that show what each mechanism of memgroup is worth, each with its control
