"""What others call our settings: the words of the field, of scikit-learn and of other libraries.

No setting can be given by them; who tries is told which one is meant.
"""

from __future__ import annotations

from functools import cache

# Our name -> what others say, in lower case and without `_` and `-`.
OTHER_NAMES = {
    "k": "clusters nclusters numclusters clustercount ngroups groups numgroups ncomponents centers",
    "lr": "learningrate learningrateinit stepsize eta eta0 gamma rate learning",
    "rounds": "t nrounds numrounds roundcount globalepochs communicationrounds iterations niter "
    "maxiter numiterations epochs",
    "epochs": "e epoch localepochs nepochs numepochs passes",
    "steps": "tau localsteps nsteps numsteps localiterations localupdates",
    "batch": "b batchsize minibatch minibatchsize localbatchsize bs",
    "weight_decay": "l2 wd decay regularization regularisation reg lambda penalty",
    "optimizer": "optimiser opt solver",
    "clip": "clipnorm maxgradnorm maxnorm gradclip gradientclipping",
    "seed": "randomstate randomseed rng",
    "starts": "ninit ninits restarts numstarts repeats",
    "fraction": "c clientfraction participation participationrate fractionfit sampleratio",
    "per_round": "clientsperround nclientsperround numclientsperround m",
    "clients": "nclients numclients devices workers users nodes",
    "samples": "nsamples numsamples samplesperclient",
    "client": "clientid clientcolumn clientcol group groupid site institution user subject",
    "label": "labels target targetcolumn labelcolumn labelcol y outcome class response",
    "target": "task tasktype problem problemtype",
    "features": "x columns featurecolumns inputs predictors",
    "path": "file filename data table csv",
    "hidden": "hiddensize hiddenunits units width hiddenlayersizes hiddenlayers hiddendim nhidden",
    "network": "model net architecture arch module estimator",
    "train_share": "trainsize trainfraction trainratio testsize testfraction testshare split",
    "validation": "validationshare validationfraction validationsize valsize holdout",
    "early_stopping": "earlystoppingrounds niternochange stopafter stoppingrounds patience",
    "metric": "scoring score measure metrics evalmetric criterion",
    "mu": "proximal proximalmu proxmu",
    "lam": "lambda lambda1",
    "start": "init initialization initialisation",
    "device": "gpu cuda",
    "threads": "njobs nthreads numthreads cores",
    "evaluate": "evalevery evaluationinterval testevery",
    "attackers": "malicious byzantine adversaries nmalicious",
    "aggregate": "aggregation aggregator aggregationrule defense defence",
    "heterogeneity": "noniid skew dirichletalpha",
    "seeds": "nseeds numseeds repetitions runs",
}


def plain_word(name: str) -> str:
    """A name in lower case, without what words are joined by.

    >>> plain_word("Learning_Rate")
    'learningrate'
    """
    return name.lower().replace("_", "").replace("-", "")


@cache
def names_by_alias() -> dict[str, list[str]]:
    """Our names by what others say."""
    found: dict[str, list[str]] = {}
    for own, others in OTHER_NAMES.items():
        for word in (plain_word(own), *others.split()):
            found.setdefault(word, []).append(own)
    return found


def meant_names(name: str) -> list[str]:
    """Our names for what somebody calls by another word.

    >>> meant_names("K"), meant_names("learning_rate"), meant_names("n_clusters")
    (['k'], ['lr'], ['k'])
    """
    return names_by_alias().get(plain_word(name), [])
