from coterie.report.text_tables import latex_table, markdown_table


def test_formats():
    head, rows = ["algorithm", "accuracy_macro"], [["ifca", "80.00 ± 1.00"]]
    assert markdown_table(head, rows).splitlines() == [
        "| algorithm | accuracy_macro |",
        "| --------- | -------------- |",
        "| ifca      | 80.00 ± 1.00   |",
    ]
    assert r"ifca & 80.00 $\pm$ 1.00 \\" in latex_table(head, rows)
