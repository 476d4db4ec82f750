"""Citations of papers that both a data set and a metric here are from, as BibTeX."""

BCS = """@article{tiwari2026lost,
  title = {Lost in Visual Translation: A VLM-Assisted Perceptual-Semantic Coherence Framework for EEG-to-Image Reconstruction},
  author = {Tiwari, Sukriti and Subrahmanyam, BHVSP and Goyal, Nidhi and Patnaik, Sai Amrit},
  journal = {arXiv preprint arXiv:2607.12364},
  year = {2026}
}"""

EEG_EDITBENCH = """@article{zhang2026eegeditbench,
  title = {EEG-EditBench: Probing Visual Information in EEG-Image Retrieval Models with Controlled Image Edits},
  author = {Zhang, Kaifan and He, Lihuo and Ji, Yuqi and Ke, Junjie and Wu, Lukun and You, Tianhao and Gao, Xinbo},
  journal = {arXiv preprint arXiv:2607.27857},
  year = {2026}
}"""
