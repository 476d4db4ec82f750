"""Numbers that the options of the verbs and what runs share; a module that imports nothing, so that help texts are quick."""

CROPS = 1600
SNR = 0.07  # puts the scores of the sample between chance and 100 %, where models can be told apart
LATENT_DIM = 100
CROP_SEED, EEG_SEED = 1, 2
MAX_SEED = 2**64 - 1
